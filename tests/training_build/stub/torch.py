"""Not PyTorch: two empty classes that `import onnxruntime.training` derives from or names in an annotation.

The Python package of onnxruntime's training build imports torch for its PyTorch front end (``ORTModule``), which cannot
be used with this stand-in: its import fails, and onnxruntime.training goes on without it. Making artifacts and training
on them runs in onnxruntime alone. Nothing here computes anything; any other name of torch is an AttributeError.
"""

from __future__ import annotations


class nn:
    """Names `torch.nn`."""

    class Module:
        """In the annotation of `onnxruntime.tools.infer_input_info`."""


class optim:
    """Names `torch.optim`."""

    class Optimizer:
        """Base class of `onnxruntime.training.optim.FusedAdam`."""
