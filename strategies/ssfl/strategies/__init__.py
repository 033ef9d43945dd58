"""Learning methods: a rule for the rounds and a source of masks, by name, by package or by file.

At module level numpy, `ssfl.method` and `ssfl.codec` only; torch and `ssfl.learning` inside the
functions that run at a client.
"""
