"""Fails a test in which an event loop worked for more than 50 ms between two of its turns: see `sitecustomize`."""

import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.loop_probe import sitecustomize

_FOLDER = Path(tempfile.mkdtemp(prefix="loop-probe-"))
sitecustomize.install(str(_FOLDER))


@pytest.fixture(autouse=True)
def short_turns(request: pytest.FixtureRequest) -> Generator[None]:
    """Measures the loops of this process, and of the processes that the test starts.

    Not in tests that are left to `make test-all`: benchmarks, and measurements of memory, need the loop of the product.
    """
    _taken()
    if request.node.get_closest_marker("exhaustive") and not request.node.get_closest_marker("smoke"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOP_PROBE", str(_FOLDER))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *_python_path()]))
        yield
    if found := _taken():
        pytest.fail(f"{request.node.name}: an event loop worked for too long between two turns:\n{found}")


def _python_path() -> list[str]:
    return [path] if (path := os.environ.get("PYTHONPATH")) else []


def _taken() -> str:
    found = ""
    for file in _FOLDER.iterdir():
        found += file.read_text()
        file.unlink()
    return found
