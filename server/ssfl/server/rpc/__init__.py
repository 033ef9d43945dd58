"""The gRPC edge: authenticate, decode, check, post to the run loop, encode.

No decision about a run is made here.
"""
