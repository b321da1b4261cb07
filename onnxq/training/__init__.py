"""Training quantized models on stock onnxruntime: a differentiable twin of Q/DQ pairs, its gradient graph, a loop."""
