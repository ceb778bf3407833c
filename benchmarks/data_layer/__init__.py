"""The data layer against the libraries people use, on the same rows, in one run: rates, private memory, costs of caches."""
