"""Measurements that take minutes and are never part of the tests. Results with raw samples go to benchmarks/results/."""
