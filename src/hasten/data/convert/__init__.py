"""Convert common formats to a store: in parallel, resumable, in constant memory, with bad records quarantined."""
