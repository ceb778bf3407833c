"""An evaluation loop of a script, and how several of its batches become one call of the model."""
