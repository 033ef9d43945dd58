"""`ssfl plan`: the bytes and seconds of a run, predicted before it starts."""
