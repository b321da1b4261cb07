"""Targets: one YAML file a runtime, read into a `Target`."""

from onnxq.targets.loader import list_targets, load_target
from onnxq.targets.target import Form, IntegerOp, Kind, Target

__all__ = ["Form", "IntegerOp", "Kind", "Target", "list_targets", "load_target"]
