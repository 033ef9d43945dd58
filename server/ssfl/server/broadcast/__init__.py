"""Bytes out: the task of each client and its encoding. No network."""
