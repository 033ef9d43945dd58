"""Methods, one file each: a rule with its coordinator's half and its client's half.

No files and no network; torch only inside functions of the client's half.
"""
