"""`onnxq tune` for people: the front, the plan that was taken, and what became of the layers that matter most."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from onnxq.report.tables import counts, human_bytes, share, table
from onnxq.report.tables import to_text as render
from onnxq.tuning.outcome import Point, Tuning
from onnxq.wording import plural

SHOWN = 12
_COLUMNS = ("", "plan", "size", "estimated", "measured", "SQNR dB", "cosine", "agreement", "layers")


def to_text(found: Tuning, width: int = 120) -> str:
    """The findings for people, without colour."""
    return render(parts(found), width)


def parts(found: Tuning) -> list[RenderableType]:
    """The findings as pieces for a `rich` console."""
    title = (
        f"Plans for {found.target} on {plural(found.samples, 'sample')} of {found.data}, cheapest first; "
        "latency as a share of the float model's"
    )
    rows = [(("->" if i == found.chosen else ""), i + 1, *_cells(point)) for i, point in enumerate(found.points)]
    out: list[RenderableType] = [table(title, _COLUMNS, rows, numbers=range(1, 8))]
    best = found.points[found.nearest]
    said = [_told(found, best), _took(found)]
    out.append(Text("\n".join(said)))
    shown = sorted(found.parts, key=lambda p: 1e3 if p.quantized_db is None else p.quantized_db)[:SHOWN]
    if shown:
        some = f"the {SHOWN} most sensitive of {plural(len(found.parts), 'layer')}"
        head = some if len(found.parts) > SHOWN else "layers, the most sensitive first"
        out.append(
            table(
                f"Plan {found.nearest + 1}: {head}; expected SQNR with this one alone at its cheapest",
                ("layer", "op", "becomes", "SQNR dB"),
                ((p.node, p.op, p.choice, "" if p.quantized_db is None else f"{p.quantized_db:.1f}") for p in shown),
                numbers=(3,),
            )
        )
    return out


def _cells(point: Point) -> tuple[str, ...]:
    return (
        human_bytes(point.bytes),
        f"{point.estimated_ratio:.2f}",
        "" if point.ratio is None else f"{point.ratio:.2f}",
        "exact" if point.sqnr_db is None else f"{point.sqnr_db:.1f}",
        f"{point.cosine:.6f}",
        f"{point.agreement:.1%}",
        counts(sorted(point.layers.items(), key=lambda item: (-item[1], item[0]))),
    )


def _told(found: Tuning, best: Point) -> str:
    size = f"{human_bytes(best.bytes)} ({share(best.bytes, found.float_bytes)} of the float model)"
    fast = f", {1 / best.ratio:.2f}x as fast" if best.ratio else ""
    if found.chosen is not None:
        return f"Plan {found.chosen + 1} is taken: {size}{fast}"
    near = f"Plan {found.nearest + 1} comes nearest ({size}{fast}): {'; '.join(found.missed())}"
    return f"No plan meets the bounds, so no model is written. {near}"


def _took(found: Tuning) -> str:
    total = sum(found.seconds.values())
    parts = ", ".join(f"{what} {seconds:.3g}" for what, seconds in found.seconds.items() if seconds >= 0.01)
    return f"{total:.3g} s ({parts}); {plural(found.tried, 'plan')} estimated, {len(found.points)} measured"
