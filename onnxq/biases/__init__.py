"""Constant biases: how their scale depends on the layer, bias correction, and what is said of it."""
