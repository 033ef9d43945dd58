"""Bytes in: slots, chunks, decoding, verification and commit. No gRPC calls, no run loop."""
