"""The recipes on real data, each in its two forms."""
