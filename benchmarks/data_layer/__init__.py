"""The data layer against the libraries people use: the same samples and tensors, in one run, in processes of their own."""
