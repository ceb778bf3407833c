"""A package whose import fails, as a user's may."""

Thing = 1 / 0
