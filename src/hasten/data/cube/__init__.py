"""Gridded data in NetCDF, Zarr and GRIB files: read windows of time as float32 arrays, decoded by the CF conventions."""
