"""A package with a training module that is run with `-m`."""
