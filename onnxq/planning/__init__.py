"""The planner: which values become integers so that the runtime really fuses them. No pass, no data: graph and target.

`sweeps` finds the integer islands of the main graph, `bodies` looks after If/Loop/Scan bodies, `misfits` says what
stays as it is whatever stands around it, `emission` writes specs for edges.
"""

from onnxq.planning.sweeps import Planner

__all__ = ["Planner"]
