"""The recipes, measured against what their users had and against what they would take."""
