"""A file of the corpus that is written wrongly says which it is, where, and what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.marks import promise
from tests.support.corpus import BadFileError, read_history, read_prompt, read_stream

STREAM = '{"name": "n", "quirk": "q", "source": "s", "chunks": [], "events": [%s]}'
PROMPT = '{"name": "n", "dialect": "%s", "reply": ["a"], "finish": "%s", "events": [{"end": "stop"}]}'


@promise("an error in a recorded provider trace is reported with its file")
@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (read_stream, "{not json", "malformed"),
        (read_stream, '{"name": "n", "quirk": "q", "events": []}', "missing required field `source`"),
        (read_stream, STREAM.replace("quirk", "habit") % "", "unknown field `habit`"),
        (read_stream, STREAM % "1", r"Expected `object`, got `int` - at `\$.events\[0\]`"),
        (read_stream, STREAM % '{"end": "stop"}, {"txt": "a"}', r"`\$.events\[1\]` is none of text"),
        (read_stream, STREAM % '{"text": "a"}', "the last of its `events`"),
        (read_stream, STREAM % "", "the last of its `events`"),
        (read_stream, STREAM.replace('"chunks": [], ', "") % '{"end": "stop"}', "no case.sse beside it"),
        (read_history, '{"name": "n", "quirk": "q", "messages": []}', "missing required field `sent`"),
        (read_prompt, PROMPT % ("xml", "stop"), r"'xml' - at `\$.dialect`"),
        (read_prompt, PROMPT % ("tool_use", "end"), r"'end' - at `\$.finish`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, read: Callable[[Path], object], text: str, words: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(BadFileError, match=words) as caught:
        read(path)
    assert "case.json: " in str(caught.value)
    assert "README" in str(caught.value)
