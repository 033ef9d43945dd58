"""`ssfl report` and `ssfl audit`: what a run left, shown and recomputed.

They never change the state of a run.
"""
