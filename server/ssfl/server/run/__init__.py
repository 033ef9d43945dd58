"""The run as a value: state, events, facts and their rules. No I/O, clock, gRPC or threads."""
