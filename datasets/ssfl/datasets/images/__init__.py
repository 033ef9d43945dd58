"""Folders of images as data sets. No archives, no downloads and no torch."""
