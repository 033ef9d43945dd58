"""Federations of processes on this machine: `ssfl demo` and `ssfl rehearse`.

No simulation in one process.
"""
