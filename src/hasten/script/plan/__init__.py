"""A script under a plan: the live job that it fills, and what of the catalogue can act on it."""
