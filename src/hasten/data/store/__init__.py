"""Rows on disk: a folder of Arrow blocks and raw arrays, published whole, read without a copy."""
