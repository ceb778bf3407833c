"""Find things in pictures: a detector, its data and its training."""
