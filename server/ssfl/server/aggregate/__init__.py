"""The exact sum of a step. No network and no journal."""
