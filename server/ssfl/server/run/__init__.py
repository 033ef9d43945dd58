"""The run as a value: state, events, facts and the rules between them.

No I/O, no clock, no gRPC, no threads.
"""
