"""Gridded data in space and time: forecasting jobs for NetCDF and Zarr files, with physics."""
