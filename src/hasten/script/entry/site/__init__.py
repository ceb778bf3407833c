"""The first folder on the path of a watched script. It contains only `sitecustomize`."""
