"""What each program of ours starts with: settings, logs, exit codes, locks, safe files."""
