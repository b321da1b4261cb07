"""The bias benchmark: onnxq reaches its goals in every cell, and onnxruntime's tool without its adjustment does not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.bias import COSINE, NETS, STEPS, TYPES, Row, compare, missed, table, tools
from benchmarks.bias_table import bias_table
from onnxq.report.tables import to_text


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("net", NETS)
def test_channels_from_1e_3_to_1e_12(net: str, types: str, tmp_path: Path) -> None:
    """On both sessions: the whole output as in float, each value within two steps of the best there is."""
    rows = compare(net, types, "onnxq", tools(*TYPES[types])["onnxq"], tmp_path)
    assert [row.session for row in rows] == ["default", "true"]
    for row in rows:
        assert not row.error
        assert row.cosine >= COSINE and row.channel >= 0.999 and row.steps <= STEPS, row
    assert not missed(rows)


@pytest.mark.parametrize(
    ("tool", "types", "dead"),
    [
        ("onnxruntime, no adjustment", "A16W16", True),
        ("onnxruntime", "A16W16", False),
        ("onnxruntime", "A16W16, unsigned", True),
    ],
)
def test_the_other_tool(tool: str, types: str, dead: bool, tmp_path: Path) -> None:
    """The yardstick measures: clipped biases are a dead channel, adjusted ones are not."""
    for row in compare("Gemm", types, tool, tools(*TYPES[types])[tool], tmp_path):
        assert not row.error
        assert (row.channel < 0.5 and row.cosine < 0.99 and row.steps > 1000) == dead, row


def test_tables() -> None:
    rows = [
        Row("Conv", "A8W8", tool, kind, 0.9999, 0.9, steps)
        for tool, steps in (("onnxruntime, no adjustment", 30.0), ("onnxruntime", 3.0), ("onnxq", 1.0))
        for kind in ("default", "true")
    ]
    rows[0] = Row("Conv", "A8W8", rows[0].tool, "default", error="does not load")
    assert "does not load" in to_text([table(rows)], 120) and "3.0" in to_text([table(rows)], 120)
    lines = bias_table({"machine": {"onnxruntime": "1.0"}, "rows": [asdict(row) for row in rows]}).splitlines()
    assert lines[2] == "| Conv | A8W8 | fails | 0.99990, 0.900, 3 | 0.99990, 0.900, 1 |"
    assert missed([Row("Conv", "A8W8", "onnxq", "true", 0.9, 0.9, 1.0)]) and not missed(rows)
