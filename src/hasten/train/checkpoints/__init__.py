"""Checkpoints of a run: everything it needs to continue bit for bit, copied in memory and written by another process."""
