"""Training scripts with a known bottleneck: what is wrong with each, and how well Hasten detects it."""
