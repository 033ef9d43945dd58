"""The loop that drives the pure run: event queue, journal, publishing, clock. No gRPC."""
