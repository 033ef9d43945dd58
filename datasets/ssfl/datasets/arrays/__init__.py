"""Numpy archives as data sets."""
