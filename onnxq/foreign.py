"""Steps that are no onnxq passes: plain functions over messages, and passes for `onnx_ir` by import path."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir

from onnxq.context import Context
from onnxq.errors import OptionError
from onnxq.passbase import Pass, Step, adopt, run_foreign

if TYPE_CHECKING:
    from onnx import ModelProto

Options = tuple[tuple[str, Any], ...]
Function = Callable[..., "ModelProto | None"]


@dataclass(frozen=True, kw_only=True)
class ProtoPass(Pass):
    """A plain ``ModelProto -> ModelProto`` function as a step.

    The function gets a message of its own with every weight in it, whatever file the weights came from, so its memory
    is that of the whole model. Its result crosses the border like any model, and always counts as a change.

    Attributes:
        function: Called with the message; None means that it changed the message in place.
        options: Further keyword arguments for the function, in order.
        label: Name used in messages; the function's own name if empty.
    """

    name: ClassVar[str] = "proto-pass"

    function: Function
    options: Options = ()
    label: str = field(default="", compare=False)

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Cross to a message, call the function, take its result over.

        Raises:
            OptionError: The function returned something else than a message.
            InputError: It returned an invalid one.
        """
        from onnx import ModelProto

        from onnxq import border

        proto = border.to_proto(model)
        result = self.function(proto, **dict(self.options))
        if result is not None and not isinstance(result, ModelProto):
            raise OptionError(f"{self} returned {type(result).__name__}; a ModelProto or None is needed")
        adopt(model, border.open_model(proto if result is None else result).model)
        return True

    def __str__(self) -> str:
        return self.label or getattr(self.function, "__name__", self.name)


def proto_pass(function: Function, *, name: str = "", **options: Any) -> ProtoPass:
    """Wrap a ``ModelProto -> ModelProto`` function so that it stands in a `Pipeline`.

    Args:
        function: Takes a message; returns one, or None if it changed the message in place.
        name: Name used in messages.
        options: Keyword arguments handed on to the function.
    """
    return ProtoPass(function=function, options=tuple(options.items()), label=name)


@dataclass(frozen=True, kw_only=True)
class IrPass(Pass):
    """A pass that another library wrote for `onnx_ir`, by import path, so that a recipe can name it.

    Attributes:
        target: ``package.module:Name`` or ``package.module.Name`` of a pass class, or of a ready pass.
        options: Constructor arguments of the class, in order.

    Raises:
        OptionError: Nothing importable there, not a pass, or constructor arguments that do not fit.
    """

    name: ClassVar[str] = "ir-pass"

    target: str
    options: Options = ()

    def __post_init__(self) -> None:
        self.make()

    def make(self) -> Step:
        """The pass itself; a fresh one for a class."""
        found = locate(self.target)
        if isinstance(found, ir.passes.PassBase) and not self.options:
            return found
        if not (isinstance(found, type) and issubclass(found, ir.passes.PassBase)):
            raise OptionError(f"{self.target} is not an onnx_ir pass class, or takes no options")
        try:
            return found(**dict(self.options))
        except (TypeError, ValueError) as error:
            raise OptionError(f"{self.target}: {error}") from error

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Run it; the result of a functional pass is taken over."""
        return run_foreign(self.make(), model)

    def __str__(self) -> str:
        return self.target.replace(":", ".").rpartition(".")[2]


def locate(path: str) -> Any:
    """Import what ``package.module:name`` or ``package.module.name`` means.

    Raises:
        OptionError: No such module or name, or the module fails while it is imported.
    """
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"cannot import {path}: {error}; the module must be installed or on PYTHONPATH (or use --pass-dir)"
        ) from error
