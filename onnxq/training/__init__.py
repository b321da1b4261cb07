"""Training quantized models on stock onnxruntime: a differentiable surrogate of Q/DQ pairs, its gradient graph, a loop."""
