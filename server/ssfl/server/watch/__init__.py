"""The HTTP edge: probes, metrics and the live status page. It reads a run and never changes it."""
