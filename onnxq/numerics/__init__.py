"""Quantization arithmetic in NumPy: no onnx import anywhere below this package."""
