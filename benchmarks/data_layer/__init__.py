"""Compare the data layer with common libraries: the same samples and tensors, in one run, in separate processes."""
