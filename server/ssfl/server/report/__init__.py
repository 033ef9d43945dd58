"""Results of a run for people: output files and the HTML report. No network."""
