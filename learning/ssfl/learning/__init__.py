"""What runs at a site: data shards, networks, saliency scores and training inside the mask.

Values in, values out: no network and no clock. Importing this package does not import torch;
`shards`, `partition`, `digits` and `make_shards` work without it.
"""
