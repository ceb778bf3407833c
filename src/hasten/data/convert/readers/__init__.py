"""Readers, one module per kind of source. Listing and detection follow from the modules in this package."""
