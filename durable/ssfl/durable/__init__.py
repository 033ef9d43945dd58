"""Crash-safe files, directory locks and failpoints. The lowest layer: no models, no network."""
