"""The lint engine: rules, what they read, selection, suppression, fixes. The rules themselves are in `onnxq.rules`."""
