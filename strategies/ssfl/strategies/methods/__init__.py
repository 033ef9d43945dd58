"""Methods, one file each: a rule with its coordinator's half and its client's half."""
