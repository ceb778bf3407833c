"""Store rows on disk: a folder of Arrow blocks and raw arrays, published atomically and read without a copy."""
