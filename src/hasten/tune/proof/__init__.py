"""Proofs: pairs in fresh processes, whole runs to a target, and the numerics gate."""
