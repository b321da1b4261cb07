"""`onnxq verify` for people: one row a session and output, then what failed and what differs."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from onnxq.diagnosis.sessions import REFERENCE, SESSIONS, Verdict
from onnxq.numerics.similarity import Agreement
from onnxq.report.tables import table
from onnxq.wording import plural


def parts(found: Verdict) -> list[RenderableType]:
    """The verdict as pieces for a `rich` console."""
    rows = [(name, "runs" if name in found.sessions else _failed(found, name), SESSIONS[name]) for name in SESSIONS]
    title = f"Sessions on {plural(found.samples, 'sample')} of {found.data}"
    out: list[RenderableType] = [table(title, ("session", "", "what it is"), rows)]
    cells = [
        (output, f"{name} : {REFERENCE}", *_cells(agreement))
        for output, by in found.agreement.items()
        for name, agreement in by.items()
    ]
    if cells:
        columns = ("output", "sessions", "SQNR dB", "max error", "equal")
        out.append(table("Agreement", columns, cells, numbers=range(2, 5)))
    lines = [f"{f.session} does not {f.stage}: {f.reason}" for f in found.failures]
    for one in found.disagreements:
        reasons = [f"{', '.join(c.nodes[:4])}: {c.why}; {c.remedy}" for c in one.causes]
        text = f"{one.output}: the {one.session} session computes something else than the file says"
        lines.append(f"{text}: {'. '.join(reasons)}" if reasons else text)
    out.append(Text("\n".join(lines), style="yellow") if lines else Text("All sessions load, run and agree."))
    return out


def _failed(found: Verdict, name: str) -> str:
    return next((f"does not {f.stage}" for f in found.failures if f.session == name), "not run")


def _cells(a: Agreement) -> tuple[str, ...]:
    if a.max_abs_error is None:
        return "", "", f"{100 * a.equal:.2f} %"
    sqnr = "exact" if a.sqnr_db is None else f"{a.sqnr_db:.1f}"
    return sqnr, f"{a.max_abs_error:.3g}", f"{100 * a.equal:.2f} %"
