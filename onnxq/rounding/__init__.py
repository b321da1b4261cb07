"""Weights to integers by more than nearest rounding: GPTQ, alone or layer by layer."""
