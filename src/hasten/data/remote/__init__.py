"""Stores behind a URL: read through a cache of blocks on this machine."""
