"""Targets: one YAML file a runtime, read into a `Target`."""

from onnxq.targets.loader import list_targets, load_target
from onnxq.targets.target import IntegerOp, Target

__all__ = ["IntegerOp", "Target", "list_targets", "load_target"]
