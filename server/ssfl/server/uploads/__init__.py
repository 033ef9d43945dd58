"""Bytes in: slots, chunks, decoding, verification and commit.

An upload posts to the run through the protocol `Run`. This package does not depend on gRPC calls
or on the run loop.
"""
