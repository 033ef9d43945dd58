"""Runs without sockets: the coordinator's own decisions, the clients' own work, one process."""
