"""``python -m onnxq`` and the ``onnxq`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exits with 0, 1 (findings) or 2 (bad input), or 130 after Ctrl-C."""
    try:
        from onnxq.cli.app import app

        app(prog_name="onnxq")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
