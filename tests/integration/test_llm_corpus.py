"""Every stream of `tests/corpus` on a real connection: a provider that sends it, and the client that must read it."""

import random
from contextlib import aclosing
from pathlib import Path

import pytest

from dialog_engine.errors import LLMError
from tests.marks import promise
from tests.support.corpus import MODEL, as_written, read_stream, stream_bytes, stream_files
from tests.support.fakes import read_all
from tests.support.hello import REQUEST
from tests.support.llm_clients import OpenAIModel
from tests.support.scripted_provider import Provider, answer, serving
from tests.support.tags import merged

pytestmark = pytest.mark.anyio


@promise("every known habit of providers is understood")
@pytest.mark.parametrize("path", stream_files(), ids=lambda path: path.stem)
async def test_the_client_reads_what_the_provider_sends_in_pieces_of_any_size(path: Path) -> None:
    expected = read_stream(path).events
    sizes, rest, pieces = random.Random(path.stem), stream_bytes(path), list[bytes]()
    while rest:
        size = sizes.randint(1, 60)
        pieces.append(rest[:size])
        rest = rest[size:]
    async with (
        serving(Provider(answer(*pieces))) as provider,
        aclosing(OpenAIModel(provider.url, "key", MODEL, max_retries=0)) as client,
    ):
        events, error = await read_all(client.open(REQUEST))

    assert error is None or isinstance(error, LLMError)
    assert as_written([*merged(events), *([error] if error else [])], expected) == expected
