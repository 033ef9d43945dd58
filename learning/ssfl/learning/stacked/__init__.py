"""Training of many clients in batched steps, for the fast simulator. No scoring, no files."""
