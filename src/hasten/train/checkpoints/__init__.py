"""Checkpoints of a run: all state for bit-identical continuation, copied in memory and written by another process."""
