"""The client of one site: it dials out, trains on local data and never sends the data."""
