"""One pass a file. `onnxq.registry` finds them by module name."""
