"""The recipes on real data: what tuning wins over the naive form, what a model learns, and how long a validation pass takes."""
