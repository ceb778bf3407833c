"""Run a script under a plan: its live job, and the optimizations that can act on it."""
