"""Stages of training as a graph, with gates, leases and resumption, on Dagster."""
