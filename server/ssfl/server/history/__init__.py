"""What happened, for people: entries, times, counters and log lines. It never changes a run."""
