"""Observe a training loop from outside, and build its profile."""
