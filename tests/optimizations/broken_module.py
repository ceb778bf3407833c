"""A module whose import fails."""

Thing = 1 / 0
