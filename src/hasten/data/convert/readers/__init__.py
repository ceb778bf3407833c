"""One kind of source a file; listing and choosing follow from the folder."""
