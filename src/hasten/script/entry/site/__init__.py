"""The folder that stands first on the path of a watched script; it holds nothing but `sitecustomize`."""
