"""Watch a run while it trains: hangs, memory growth, out of memory, NaN and infinite losses."""
