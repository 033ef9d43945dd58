"""Studies: many simulated runs, compared."""
