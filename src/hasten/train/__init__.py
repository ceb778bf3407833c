"""The training loop: right before it is fast, and the host in which optimizations act on our own jobs."""
