"""Sinks that `--log-to` can name, one a file. Each class has a card, which says where the windows go and what it needs."""
