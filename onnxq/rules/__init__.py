"""Lint rules, grouped by the first digit of their code; the engine is `onnxq.linting`."""
