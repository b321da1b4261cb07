"""Where samples come from: folders, files, functions, Python objects, or random numbers when asked for by name."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from onnxq.calibration.feeds import Feeds, Port, check_feeds, name_feeds, ports_of
from onnxq.calibration.files import array_reader, natural, test_set_reader
from onnxq.calibration.images import SUFFIXES, Preprocessing
from onnxq.calibration.random_data import RANDOM_SAMPLES, random_feeds
from onnxq.calibration.spool import Spool
from onnxq.errors import DataError, OnnxqError, OptionError, near
from onnxq.wording import plural

T = TypeVar("T")
Data = str | Path | Iterable[Any] | Callable[[], Iterable[Any]]

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, eq=False)
class Source:
    """Samples that can be gone through any number of times; each fits the model or stops the run.

    Attributes:
        text: Where they come from.
        ports: The model's inputs.
        make: Starts a new pass over the raw samples.
        total: Number of samples before the limit, None when only a pass tells.
        limit: Use at most this many.
        random: Whether the samples are random numbers.
        files: The file of each sample, for messages, where there is one.
    """

    text: str
    ports: Sequence[Port]
    make: Callable[[], Iterable[Any]]
    total: int | None = None
    limit: int | None = None
    random: bool = False
    files: Sequence[Path] = ()

    def __iter__(self) -> Iterator[Feeds]:
        """Checked samples, one at a time.

        Raises:
            DataError: There is none, or one that does not fit the model.
        """
        return self.each(self._feeds)

    def each(self, take: Callable[[Any, int], T]) -> Iterator[T]:
        """What ``take`` makes of each raw sample and its number; its errors name the sample's file.

        Raises:
            DataError: There is no sample, or whatever ``take`` raises.
        """
        empty = True
        for index, sample in enumerate(islice(self.make(), self.limit)):
            try:
                taken = take(sample, index)
            except DataError as error:
                if not self.files:
                    raise
                raise DataError(f"{self.files[index]}: {error}") from None
            yield taken
            empty = False
        if empty:
            raise DataError(f"{self.text} holds no samples")

    def _feeds(self, sample: Any, index: int) -> Feeds:
        feeds = name_feeds(sample, self.ports, index)
        check_feeds(self.ports, feeds, index)
        return feeds

    @property
    def size(self) -> int | None:
        """Number of samples of a pass, None when only a pass tells."""
        if self.total is None or self.limit is None:
            return self.total
        return min(self.total, self.limit)

    def describe(self) -> str:
        """One line for reports and metadata."""
        return f"{self.text}, first {self.limit}" if self.limit is not None else self.text


def open_source(
    data: Data,
    model: ir.Model,
    *,
    preprocessing: Preprocessing | str | Path | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Source:
    """Find out what ``data`` is; nothing is read yet but folder listings.

    Args:
        data: One of: a folder of .npz / .npy files, of images, or of ``test_data_set_*``; one such file;
            ``module:function`` that yields samples; ``random`` or ``random:batch=1,seq=64``; a function that is called
            for each pass; any iterable of samples (an iterator that can be used only once is kept on disk).
            A sample is ``{input name: array}``, or for models with one input the array.
        model: The model the samples are for.
        preprocessing: How images become inputs.
        samples: Use at most this many.
        seed: Seed of random data.

    Raises:
        DataError: A folder that holds none of these, or several kinds.
        OptionError: No such file or function, or options that do not fit the kind of data.
    """
    if samples is not None and samples < 1:
        raise OptionError(f"the number of samples must be at least 1, got {samples}")
    ports = ports_of(model)
    if isinstance(preprocessing, str | Path):
        preprocessing = Preprocessing.read(preprocessing)
    text = str(data)
    if isinstance(data, Source):
        return data
    if isinstance(data, str) and (text == "random" or text.startswith("random:")):
        count = samples or RANDOM_SAMPLES
        make = random_feeds(text, ports, count, seed)
        source = Source(f"{text} numbers (seed {seed}, {plural(count, 'sample')})", ports, make, count, random=True)
    elif isinstance(data, str | Path):
        if Path(data).exists():
            return _files(Path(data), ports, preprocessing, samples)
        if not isinstance(data, str) or not _FUNCTION.fullmatch(data):
            raise OptionError(f"data '{text}': no such file or folder, and not 'module:function' or 'random'")
        source = Source(f"function {text}", ports, _function(text), None, samples)
    else:
        source = _python(data, ports, samples)
    if preprocessing is not None:
        raise OptionError(f"preprocessing is for folders of images, but the data is {source.text}")
    return source


def _files(path: Path, ports: Sequence[Port], how: Preprocessing | None, samples: int | None) -> Source:
    """A folder of samples of one kind, or a single file."""
    inside = sorted((p for p in path.iterdir() if not p.name.startswith(".")), key=natural) if path.is_dir() else [path]
    sets = [p for p in inside if p.is_dir() and p.name.startswith("test_data_set")]
    if path.is_dir() and any(p.name == "input_0.pb" for p in inside):
        sets = [path]
    arrays = [p for p in inside if p.suffix.lower() in (".npz", ".npy")]
    images = [p for p in inside if p.suffix.lower() in SUFFIXES]
    kinds = {"test_data_set folders": sets, ".npz / .npy files": arrays, "images": images}
    found = [kind for kind, paths in kinds.items() if paths]
    if len(found) != 1:
        wanted = "want one of: " + ", ".join(kinds)
        raise DataError(f"{path} holds {' and '.join(found)}; {wanted}" if found else f"{path} holds no data; {wanted}")
    (kind,) = found
    if kind != "images" and how is not None:
        raise OptionError(f"preprocessing is for folders of images, but {path} holds {kind}")
    if kind == "images":
        readers = _image_readers(path, images, ports, how)
    elif sets:
        readers = [test_set_reader(p, ports) for p in sets]
    else:
        readers = [array_reader(p) for p in arrays]
    label = f"{path} ({len(readers)} {kind})" if path.is_dir() else str(path)
    return Source(
        label, ports, lambda: (read() for read in readers), len(readers), samples, files=sets or arrays or images
    )


def _image_readers(
    path: Path, images: Sequence[Path], ports: Sequence[Port], how: Preprocessing | None
) -> list[Callable[[], Any]]:
    if how is None:
        raise OptionError(
            f"{path} holds images: say how they become inputs with --preprocessing FILE, a YAML file "
            "with size, crop, layout, color, divide, mean, std, dtype"
        )
    if how.input is not None and how.input not in (names := [p.name for p in ports]):
        raise OptionError(f"preprocessing: the model has no input '{how.input}'{near(how.input, names)}")
    name = how.input
    return [lambda p=p: {name: how.load(p)} if name else how.load(p) for p in images]  # type: ignore[misc]


def _python(data: Iterable[Any] | Callable[[], Iterable[Any]], ports: Sequence[Port], samples: int | None) -> Source:
    if isinstance(data, Mapping | np.ndarray):
        return Source("one sample", ports, lambda: [data], 1, samples)
    if isinstance(data, Iterator):
        spool = Spool(data)
        return Source("an iterator", ports, lambda: spool, None, samples)
    if isinstance(data, Iterable):
        total = len(data) if isinstance(data, Sized) else None
        return Source(f"a {type(data).__name__}", ports, lambda: data, total, samples)
    if callable(data):
        return Source(f"function {getattr(data, '__name__', type(data).__name__)}", ports, data, None, samples)
    raise OptionError(f"data must be a path, a function or an iterable of samples, got a {type(data).__name__}")


def _function(text: str) -> Callable[[], Iterable[Any]]:
    """``module:function``, imported as ``python -m`` would: the working folder comes first."""
    module_name, _, name = text.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's code raises
        why = f"{type(error).__name__}: {error}"
        raise OptionError(f"data '{text}': cannot import '{module_name}' from here: {why}") from error
    finally:
        sys.path.remove(here)
    for part in name.split("."):
        if not hasattr(found, part):
            raise OptionError(f"data '{text}': '{module_name}' has no '{name}'{near(part, vars(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(f"data '{text}' is a {type(found).__name__}, not a function")

    def samples() -> Iterator[Any]:
        try:
            yield from found()
        except OnnxqError:
            raise
        except Exception as error:
            raise DataError(f"data '{text}' failed: {type(error).__name__}: {error}") from error

    return samples
