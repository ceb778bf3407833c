<<<<<<< HEAD
"""What the recipes bring, against what their users have."""
=======
"""The recipes on real data: what tuning wins over the naive form, what a model learns, and how long a validation pass takes."""
>>>>>>> main
