"""Whole federations as processes on this machine: `ssfl demo` and `ssfl rehearse`."""
