"""Files, locks and failpoints that survive a crash: the lowest layer.

It knows nothing of models, runs or networks.
"""
