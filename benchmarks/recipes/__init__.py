"""Measure the recipes on real data: the gain over the naive form, what a model learns, and the time of a validation pass."""
