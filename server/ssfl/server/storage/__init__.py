"""What survives a crash: journal, models, uploads on disk.

No other room handles a path of the state directory.
"""
