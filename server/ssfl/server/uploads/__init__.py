"""Bytes in: slots, chunks, decoding, verification and commit.

An upload posts to the run through the protocol `Run`; nothing here knows gRPC calls or the loop.
"""
