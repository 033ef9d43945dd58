"""Records for users: history entries, timings, counters and log lines. They never affect a run."""
