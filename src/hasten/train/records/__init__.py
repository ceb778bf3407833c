"""The files that describe a run (its record, log and reports), and reading them back."""
