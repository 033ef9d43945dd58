"""Journal, models and uploads on disk. No other package names a file of the state directory.

Other packages get their files from StateDirectory, Store, Spool and Journal. LedgerFile and the
checks of a recovery (accounting, recovery) still open a path that StateDirectory gives them.
"""
