"""Random numbers as samples, for models whose speed or structure matters and not their accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from onnxq.calibration.feeds import Feeds, Port
from onnxq.errors import OptionError, near

RANDOM_SAMPLES = 8


def random_feeds(text: str, ports: Sequence[Port], count: int, seed: int) -> Callable[[], Iterator[Feeds]]:
    """Standard normal floats, and integers 0 and 1, which are legal in most tables and masks.

    Args:
        text: ``random`` or ``random:DIM=NUMBER,...`` with a number for each open dimension, called by its symbol or,
            where it has none, ``input.index``.
        ports: The model's inputs.
        count: Number of samples.
        seed: Every pass gives the same numbers.

    Raises:
        OptionError: An open dimension without a number, a number without such a dimension, or an input whose type or
            rank the model does not say.
    """
    sizes = _sizes(text)
    shapes: dict[str, list[int]] = {}
    open_dims: dict[str, None] = {}
    for port in (p for p in ports if p.required):
        if port.dims is None or port.dtype is None:
            raise OptionError(f"random data need type and rank of input '{port.name}', which the model does not say")
        keys = [d if isinstance(d, str) else f"{port.name}.{i}" for i, d in enumerate(port.dims)]
        open_dims |= {key: None for key, d in zip(keys, port.dims, strict=True) if not isinstance(d, int)}
        shapes[port.name] = [
            d if isinstance(d, int) else sizes.get(key, 0) for key, d in zip(keys, port.dims, strict=True)
        ]
    for name in sizes:
        if name not in open_dims:
            raise OptionError(f"data '{text}': the model has no open dimension '{name}'{near(name, open_dims)}")
    if missing := [name for name in open_dims if name not in sizes]:
        wanted = ",".join(f"{name}=NUMBER" for name in missing)
        raise OptionError(f"random data need a number for each open dimension: write random:{wanted}")
    types = {p.name: p.dtype.numpy() for p in ports if p.dtype is not None}

    def make() -> Iterator[Feeds]:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            yield {
                name: np.asarray(
                    rng.integers(0, 2, shape) if types[name].kind in "biu" else rng.standard_normal(shape)
                ).astype(types[name])
                for name, shape in shapes.items()
            }

    return make


def _sizes(text: str) -> dict[str, int]:
    sizes = {}
    for part in filter(None, text.partition(":")[2].split(",")):
        name, _, number = part.rpartition("=")
        if not name or not number.strip().isdigit():
            raise OptionError(f"data '{text}': expected random:DIM=NUMBER,..., got '{part}'")
        sizes[name.strip()] = int(number)
    return sizes
