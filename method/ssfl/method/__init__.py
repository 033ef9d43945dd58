"""The algorithm's arithmetic: numpy only, no network, no clock, no torch."""
