"""How many samples are computed at once: searched, measured, chosen."""
