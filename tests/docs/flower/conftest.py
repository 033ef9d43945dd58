"""`federate.py` imports Flower, which is not in our environment: it is run, never collected."""

collect_ignore = ["federate.py"]
