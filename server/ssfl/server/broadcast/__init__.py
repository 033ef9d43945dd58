"""Bytes out: which task a client gets, and in which encoding. No network."""
