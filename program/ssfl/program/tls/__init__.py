"""TLS material and its diagnosis: PEM files, and a probe that explains a failed handshake.

No gRPC.
"""
