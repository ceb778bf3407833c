"""Reference workloads: complete training jobs to point at data of one's own, built from the public parts alone."""
