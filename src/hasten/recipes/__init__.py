"""Reference workloads: complete training jobs to run on your own data, built from Hasten's public API only."""
