"""Watch a run while it trains: hangs, memory growth, out of memory, losses that are not finite."""
