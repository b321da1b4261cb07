"""`onnxq.tune`: the cheapest mix of types that meets a bound. Search, costs, sensitivities, measurement."""

from onnxq.tuning.outcome import Bounds, Part, Point, Tuning
from onnxq.tuning.tuner import tune

__all__ = ["Bounds", "Part", "Point", "Tuning", "tune"]
