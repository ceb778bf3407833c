"""The training loop, correct before fast, and the host in which optimizations act on jobs."""
