"""What a process exposes to people who watch it: metrics, recent log records, a small HTTP server.

No run state.
"""
