"""Observe a script's training loader, and read its batches in faster ways without changing them."""
