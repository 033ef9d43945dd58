"""TLS: reading of PEM files, and a probe that explains a failed handshake.

No gRPC.
"""
