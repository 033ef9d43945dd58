"""Numpy archives as data sets. No pickled arrays, and no torch."""
