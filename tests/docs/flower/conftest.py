"""`federate.py` imports Flower, which is not in our environment: it is run, not collected."""

collect_ignore = ["federate.py"]
