"""Model files that every program reads and writes: safetensors, mask and manifest.

No torch, no network.
"""
