"""`ssfl simulate`, `ssfl compare` and `ssfl paper`: many simulated runs.

Flags and printing only; the runs are in `ssfl.study`.
"""
