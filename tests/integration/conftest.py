"""What the tests of whole parts have in common."""

from collections.abc import AsyncGenerator

import pytest

from tests.integration.engines import Model


@pytest.fixture
async def model() -> AsyncGenerator[Model]:
    """A model that engines can ask."""
    async with Model().serving() as model:
        yield model
