"""The arithmetic of the method: numpy only, no files, no network, no clock, no torch."""
