"""`onnxq compare` for people: one row an output and session, then size, latency and findings."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from onnxq.diagnosis.comparison import Comparison
from onnxq.numerics.similarity import Agreement
from onnxq.report.tables import human_bytes, share, table
from onnxq.report.tables import to_text as render
from onnxq.wording import plural


def to_text(found: Comparison, width: int = 120) -> str:
    """The comparison for people, without colour."""
    return render(parts(found), width)


def parts(found: Comparison) -> list[RenderableType]:
    """The comparison as pieces for a `rich` console."""
    rows = []
    for output in found.outputs:
        for session, agreement in output.sessions.items():
            rows.append((output.name, session, *_cells(agreement)))
        if output.gap is not None:
            rows.append(("", "default : true", *_cells(output.gap)))
    columns = ("output", "session", "cosine", "worst sample", "SQNR dB", "max error", "top-1", "equal")
    title = f"Float against quantized on {plural(found.samples, 'sample')} of {found.data}"
    out: list[RenderableType] = [table(title, columns, rows, numbers=range(2, 8))]
    lines = []
    if found.float_bytes and found.quant_bytes:
        sizes = f"{human_bytes(found.float_bytes)} -> {human_bytes(found.quant_bytes)}"
        lines.append(f"Size     {sizes} ({share(found.quant_bytes, found.float_bytes)})")
    if found.float_ms is not None and found.quant_ms is not None:
        faster = found.float_ms / found.quant_ms
        lines.append(f"Latency  {found.float_ms:.3g} ms -> {found.quant_ms:.3g} ms ({faster:.2f}x as fast)")
    if lines:
        out.append(Text("\n".join(lines)))
    broken = [
        f"{output.name} ({session}): {plural(a.broken, 'value')} finite in only one of the models"
        for output in found.outputs
        for session, a in output.sessions.items()
        if a.broken
    ]
    left_out = [
        f"{output.name}: {a.left_out} of {plural(a.values, 'value')} infinite or NaN in both models: left out"
        for output in found.outputs
        if (a := next(iter(output.sessions.values()))).left_out
    ]
    findings = broken + left_out + found.gaps() + found.notes
    if findings:
        out.append(Text("\n".join(findings), style="yellow"))
    return out


def _cells(a: Agreement) -> tuple[str, ...]:
    if a.cosine is None or a.worst_cosine is None or a.max_abs_error is None:
        return ("", "", "", "", "", _percent(a.equal))
    sqnr = "exact" if a.sqnr_db is None else f"{a.sqnr_db:.1f}"
    top1 = "" if a.top1 is None else _percent(a.top1)
    worst = f"{a.worst_cosine:.6f} (#{a.worst_sample})"
    return f"{a.cosine:.6f}", worst, sqnr, f"{a.max_abs_error:.3g}", top1, _percent(a.equal)


def _percent(part: float) -> str:
    """Percent that says 100 only for all of them."""
    return "100 %" if part == 1.0 else f"{min(100 * part, 99.99):.2f} %"
