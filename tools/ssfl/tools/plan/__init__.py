"""`ssfl plan`: the bytes and seconds of a run, predicted. No data, no training, no network."""
