"""Measurements that take minutes: never part of the tests. Results go to benchmarks/results/, raw samples and all."""
