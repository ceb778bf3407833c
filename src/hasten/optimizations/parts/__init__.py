"""Code that several optimizations share, or that is longer than the optimization that uses it."""
