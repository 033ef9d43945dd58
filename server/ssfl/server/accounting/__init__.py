"""What a run costs: bytes by phase and client, sockets, memory.

It never decides anything about a run.
"""
