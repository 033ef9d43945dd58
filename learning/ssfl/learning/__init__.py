"""The learning at a site: tasks, networks, saliency scores and training inside the mask.

No network and no clock. Importing this package does not import torch; most of its modules do.
"""
