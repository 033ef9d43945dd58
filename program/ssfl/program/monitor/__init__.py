"""Monitoring of a process: metrics, recent log records and a small HTTP server.

No run state.
"""
