"""Descriptions of the Debian packages that are installed here: short description, long description, section.

Differs from machine to machine; compare with the float model on the same machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from models.fetch import NotServed

STATUS = Path("/var/lib/dpkg/status")


class Description(NamedTuple):
    short: str
    long: str
    section: str


def descriptions() -> list[Description]:
    """All packages whose long description has more than 80 characters (cut at 400), in the file's order."""
    if not STATUS.exists():
        raise NotServed("package descriptions: this machine has no dpkg status file")
    out = []
    for entry in STATUS.read_text("utf-8").split("\n\n"):
        text = re.search(r"^Description: (.*)\n((?: .*\n?)+)", entry, re.M)
        section = re.search(r"^Section: (.*)$", entry, re.M)
        if text is None:
            continue
        long = " ".join(line.strip() for line in text[2].split("\n") if line.strip() != ".")
        if len(long) > 80:
            out.append(Description(text[1], long[:400], section[1] if section else ""))
    return out
