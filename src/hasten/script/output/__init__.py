"""Write a script's checkpoints in the background."""
