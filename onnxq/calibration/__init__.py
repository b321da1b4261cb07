"""Where model and calibration samples meet: sources, observers, the onnxruntime runner."""
