"""Samplers, one a file. Each class has a card, which says what it reads and what it needs."""
