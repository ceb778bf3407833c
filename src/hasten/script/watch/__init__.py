"""What is seen of a training loop from outside, and what is made of it."""
