"""Benchmarks of the dialogue recipe and of what it is made of."""
