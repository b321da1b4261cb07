"""Quantized models for onnxruntime's training build: what it cannot train, rewritten so that it can, and back."""
