"""The HTTP edge: probes, metrics and the live status page. Read-only."""
