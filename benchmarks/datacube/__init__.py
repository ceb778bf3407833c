"""Measure the datacube recipe: reading, regridding, batches, physics and the whole job."""
