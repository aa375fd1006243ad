"""The bound on memory of every fuzz test."""

from collections.abc import Generator

import pytest

from tests.fuzz.limits import MEMORY_MB, peak_mb


@pytest.fixture(autouse=True)
def bounded_memory() -> Generator[None]:
    """Fails a test in which the peak of the process's memory has grown by too much."""
    before = peak_mb()
    yield
    assert peak_mb() - before < MEMORY_MB
