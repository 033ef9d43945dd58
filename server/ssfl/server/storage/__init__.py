"""Durable storage: journal, models and uploads on disk.

No other package handles paths of the state directory.
"""
