"""Mechanisms that several optimizations share, or that are longer than the optimization that uses them."""
