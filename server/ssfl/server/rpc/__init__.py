"""The gRPC edge: authenticate, decode, check, post to the run loop, encode. It decides nothing."""
