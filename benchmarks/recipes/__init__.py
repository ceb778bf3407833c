"""The recipes on real data: what tuning wins over the naive form, what a model learns, what a validation pass takes."""
