"""What makes a proof: pairs in fresh processes, whole runs to a target, the numerics gate."""
