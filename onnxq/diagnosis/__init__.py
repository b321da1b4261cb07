"""Is the quantized model still the model, and if not, where and why: compare and debug."""
