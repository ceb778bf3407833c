"""Read stores behind a URL through a local block cache."""
