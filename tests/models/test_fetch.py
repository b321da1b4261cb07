"""Fetching out of packages: checked, whole or not at all, once. Packages come from a folder, never from a network."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from models import fetch
from models.fetch import Item, NotServed, Package

CONTENT = {"weights.bin": b"0123", "photos/a.jpg": b"a", "photos/b.jpg": b"b", "photos/notes.txt": b"no photo"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def package(version: str = "1.0", weights: str = sha256(CONTENT["weights.bin"])) -> Package:
    listing = "".join(f"{sha256(CONTENT[f'photos/{name}'])}  {name}\n" for name in ("a.jpg", "b.jpg"))
    items = (
        Item("weights", "tiny_zoo/weights.bin", weights),
        Item("photos", "tiny_zoo/photos", sha256(listing.encode()), "*.jpg"),
    )
    return Package("tiny-zoo", "pypi", version, "MIT", (), items)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a folder, the only place where pip looks; an empty cache."""
    wheel = tmp_path / "wheels" / "tiny_zoo-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as bundle:
        for name, content in CONTENT.items():
            bundle.writestr(f"tiny_zoo/{name}", content)
        info = "tiny_zoo-1.0.dist-info"
        bundle.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-zoo\nVersion: 1.0\n")
        bundle.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        bundle.writestr(f"{info}/RECORD", "")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("ONNXQ_CACHE", str(tmp_path / "cache"))
    return wheel


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fetch, "zoo", lambda: {"tiny-zoo": package()})
    yield


def kept(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_only_the_listed_files_are_kept_and_fetched_once(served: Path, listed: None, tmp_path: Path) -> None:
    assert not fetch.cached("weights")
    assert fetch.fetch("weights").read_bytes() == b"0123"
    home = tmp_path / "cache" / "zoo" / "tiny-zoo-1.0" / "tiny_zoo"
    assert kept(tmp_path / "cache" / "zoo") == [
        f"tiny-zoo-1.0/tiny_zoo/{name}" for name in ("photos/a.jpg", "photos/b.jpg", "weights.bin")
    ]
    served.unlink()
    assert fetch.cached("photos")
    assert fetch.fetch("photos") == home / "photos"


def test_a_list_that_has_grown(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = package()
    monkeypatch.setattr(fetch, "zoo", lambda: {"tiny-zoo": replace(before, items=before.items[1:])})
    assert fetch.fetch("photos").is_dir()
    monkeypatch.setattr(fetch, "zoo", lambda: {"tiny-zoo": before})
    assert fetch.cached("photos")
    assert not fetch.cached("weights")
    assert fetch.fetch("weights").read_bytes() == b"0123"
    assert len(kept(tmp_path / "cache" / "zoo")) == 3


def test_other_content_leaves_nothing(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "zoo", lambda: {"tiny-zoo": package(weights="0" * 64)})
    with pytest.raises(NotServed, match=rf"tiny-zoo 1.0: 'tiny_zoo/weights.bin' has SHA-256 {sha256(b'0123')}"):
        fetch.fetch("weights")
    assert kept(tmp_path / "cache") == []
    assert not fetch.cached("weights")


def test_a_version_that_is_not_served_is_one_line(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "zoo", lambda: {"tiny-zoo": package("2.0")})
    with pytest.raises(NotServed, match=r"^tiny-zoo 2\.0 cannot be downloaded here: [^\n]+$"):
        fetch.fetch("weights")
    assert kept(tmp_path / "cache") == []


def test_a_name_that_is_not_in_the_list() -> None:
    for door in (fetch.fetch, fetch.cached):
        with pytest.raises(KeyError, match=r"no 'orientatoin' in models/zoo.yaml; known: .*orientation"):
            door("orientatoin")


def test_the_list_is_pinned_and_licensed() -> None:
    names = [item.name for found in fetch.zoo().values() for item in found.items]
    assert len(set(names)) == len(names)
    for found in fetch.zoo().values():
        assert found.kind in ("pypi", "apt")
        assert found.license
        assert re.fullmatch(r"[\w.+~-]+", found.version)
        assert all(re.fullmatch("[0-9a-f]{64}", item.sha256) for item in found.items)
