"""What looks after a run while it trains: whether it still moves, whether it grows."""
