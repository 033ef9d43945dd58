"""Bytes in: slots, chunks, decoding and verification. No event of the run is made here."""
