"""OQ621–OQ629: what onnxruntime's training build does not take (1.19.2, the last one).

`onnxq.trainable.findings` looks for it, once for all these rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

from onnxq.diagnostics import Severity
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Subject
from onnxq.trainable import findings

_found: WeakKeyDictionary[Subject, dict[str, list[findings.Finding]]] = WeakKeyDictionary()


def _of(subject: Subject, *kinds: str) -> Iterator[Finding]:
    """Obstacles of some kinds."""
    if subject not in _found:
        rows: dict[str, list[findings.Finding]] = {}
        for found in findings.obstacles(subject.model):
            rows.setdefault(found.code, []).append(found)
        _found[subject] = rows
    for kind in kinds:
        for found in _found[subject].get(kind, ()):
            severity = None if found.stops else Severity.WARNING
            yield Finding(found.at, found.why, severity=severity)


@graph_rule("OQ621", "training-version", "error", targets=("ort-training",), fix="to-trainable", safe=False)
def training_version(subject: Subject) -> Iterator[Finding]:
    """The opset or IR version is none that the training build can train pairs of.

    What it does:
        Compares the opset with 13 to 18, and the IR version with 10, its newest.

    Why is this bad:
        Its fusion of QuantizeLinear and DequantizeLinear knows their schema of opset 13, which holds up to 18. Newer
        pairs get no gradient, newer IR versions are not loaded.

    Use instead:
        Opset 18; `to-trainable` brings a model there.

    Fix safety:
        Unsafe, like all fixes here: `to-trainable` rewrites the model as one to be trained, which computes the same;
        `from-trainable` brings it back.
    """
    yield from _of(subject, "opset", "ir-version")


@graph_rule("OQ622", "training-several-scales", "error", targets=("ort-training",), fix="to-trainable", safe=False)
def training_several_scales(subject: Subject) -> Iterator[Finding]:
    """A pair has several scales.

    What it does:
        Looks for QuantizeLinear with more than one scale.

    Why is this bad:
        The kernel that trains stops at the first step: "Quantization scale must be a scalar or 1D tensor of size 1".

    Use instead:
        A Div by the scales in front of a pair with scale 1, and a Mul behind it, as `to-trainable` writes.

    Fix safety:
        Unsafe: the model becomes one to be trained; it computes the same.
    """
    yield from _of(subject, "several-scales")


@graph_rule("OQ623", "training-raw-zero-point", "error", targets=("ort-training",), fix="to-trainable", safe=False)
def training_raw_zero_point(subject: Subject) -> Iterator[Finding]:
    """A zero point is stored as raw bytes.

    What it does:
        Looks for 8-bit zero points of pairs in `raw_data`.

    Why is this bad:
        The training build reads `int32_data` alone, and takes the zero point to be 0.

    Use instead:
        The typed field (`onnx.helper.make_tensor`), as `to-trainable` writes.

    Fix safety:
        Unsafe: the model becomes one to be trained; it computes the same.
    """
    yield from _of(subject, "raw-zero-point")


@graph_rule("OQ624", "training-shared-pair", "error", targets=("ort-training",), fix="to-trainable", safe=False)
def training_shared_pair(subject: Subject) -> Iterator[Finding]:
    """A QuantizeLinear is not alone with one DequantizeLinear.

    What it does:
        Looks for QuantizeLinear with no or several DequantizeLinear, or another reader; for equal pairs on one value;
        and for zero points that several pairs read.

    Why is this bad:
        "Every QuantizeLinear must be followed by a unique DequantizeLinear": artifacts cannot be made. Equal pairs are
        merged into one with two readers first; a shared zero point goes with the first pair.

    Use instead:
        One pair for each value, whose DequantizeLinear may have several readers, with a zero point of its own.

    Fix safety:
        Unsafe: the model becomes one to be trained; it computes the same.
    """
    yield from _of(subject, "shared-integers", "equal-pairs", "shared-zero-point")


@graph_rule("OQ625", "training-pair-type", "error", targets=("ort-training",), fix="to-trainable", safe=False)
def training_pair_type(subject: Subject) -> Iterator[Finding]:
    """A pair has a type or a scale that the training build computes otherwise.

    What it does:
        Looks for pairs of other than 8 bits, and for scales that are computed at run time.

    Why is this bad:
        The kernel that trains clips to 8 bits whatever the type is, and wants a constant scale.

    Use instead:
        8 bits; for fewer, a Clip as `to-trainable` writes. Inputs that are quantized at run time stay float meanwhile.

    Fix safety:
        Unsafe: the model becomes one to be trained; pairs of more than 8 bits, and those that are computed, are float
        as long as it is.
    """
    yield from _of(subject, "other-width", "computed-scale")


@graph_rule("OQ626", "training-pair-in-body", "error", targets=("ort-training",), fix="to-trainable", safe=False)
def training_pair_in_body(subject: Subject) -> Iterator[Finding]:
    """A pair stands in an If, Loop or Scan body, or in a local function.

    What it does:
        Looks for QuantizeLinear outside the main graph.

    Why is this bad:
        The training build makes no gradient for it.

    Use instead:
        The nodes of the function in the main graph (`inline-functions`); a float body.

    Fix safety:
        Unsafe: the model becomes one to be trained; pairs in bodies are float as long as it is.
    """
    yield from _of(subject, "pair-in-body")


@graph_rule("OQ627", "training-integer-operator", "error", targets=("ort-training",), fix="to-trainable", safe=False)
def training_integer_operator(subject: Subject) -> Iterator[Finding]:
    """An operator on integers, or a pair of onnxruntime's own, has no gradient.

    What it does:
        Looks for `QLinear*`, `*Integer`, onnxruntime's integer operators, and pairs of com.microsoft.

    Why is this bad:
        Artifacts cannot be made, or nothing in front of the operator is trained.

    Use instead:
        Float operators between pairs of ai.onnx (`qoperator-to-qdq`).

    Fix safety:
        Unsafe: the model becomes one to be trained; it computes the same but for values in the middle of two integers.
    """
    yield from _of(subject, "integer-operator", "pair-domain")


@graph_rule("OQ628", "training-no-gradient", "error", targets=("ort-training",), fix="to-trainable", safe=False)
def training_no_gradient(subject: Subject) -> Iterator[Finding]:
    """An operator has no gradient in the training build.

    What it does:
        Looks for ConvTranspose, whose gradient has no CPU kernel.

    Why is this bad:
        The session that trains is not made.

    Use instead:
        The Conv that computes the same, as `to-trainable` writes.

    Fix safety:
        Unsafe: the model becomes one to be trained; it computes the same.
    """
    yield from _of(subject, "no-gradient")


@graph_rule("OQ629", "training-frozen-weight", "warning", targets=("ort-training",), fix="to-trainable", safe=False)
def training_frozen_weight(subject: Subject) -> Iterator[Finding]:
    """A weight is stored as integers, and will not be trained.

    What it does:
        Looks for DequantizeLinear that read stored integers.

    Why is this bad:
        Integers have no gradient: the weight stays what it is.

    Use instead:
        A float weight in front of the pair (`thaw`).

    Fix safety:
        Unsafe: the model becomes one to be trained; it computes the same.
    """
    yield from _of(subject, "frozen-weight")
