"""Runs without sockets, in one process: the coordinator's state machine and the clients' work."""
