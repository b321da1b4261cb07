import pytest

from onnxq.cli.app import app


@pytest.fixture
def onnxq(capfd):
    """Run one command line in this process; gives exit code, stdout and stderr."""

    def run(*args):
        code = 0
        try:
            app(args=[str(arg) for arg in args], prog_name="onnxq")
        except SystemExit as stop:
            code = stop.code or 0
        return (code, *capfd.readouterr())

    return run
