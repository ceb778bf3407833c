"""The recipes pointed at real data, each in its two forms."""
