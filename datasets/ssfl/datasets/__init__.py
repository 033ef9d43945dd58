"""Data sets: sources, partitioning among clients, and shard files.

Needs numpy but not torch, so data can be prepared on any machine.
"""
