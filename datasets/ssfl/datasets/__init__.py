"""Data sets: where they come from, how they are cut among clients, the shard a client reads.

Numpy only, so that data can be prepared on a machine without torch.
"""
