"""Reports: one function a format."""
