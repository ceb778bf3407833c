"""The recipes' jobs on real data."""
