"""Model files: safetensors, mask and manifest.

No torch, no network.
"""
