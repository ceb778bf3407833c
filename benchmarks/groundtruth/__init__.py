"""Training scripts whose bottleneck is known, what is wrong with each, and how well Hasten finds it out."""
