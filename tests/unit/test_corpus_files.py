"""A file of the corpus that is written wrongly says which it is, where, and what is wrong."""

from pathlib import Path

import pytest

from tests.marks import promise
from tests.support.corpus import BadFileError, Case, HistoryCase, PromptCase, StreamCase, read_case

STREAM = '{"name": "n", "quirk": "q", "source": "s", "chunks": [], "events": [%s]}'
PROMPT = '{"name": "n", "dialect": "%s", "reply": ["a"], "finish": "%s", "events": [{"end": "stop"}]}'


@promise("an error in a recorded provider trace is reported with its file")
@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (StreamCase, "{not json", "malformed"),
        (StreamCase, '{"name": "n", "quirk": "q", "events": []}', "missing required field `source`"),
        (StreamCase, STREAM.replace("quirk", "habit") % "", "unknown field `habit`"),
        (StreamCase, STREAM % "1", r"Expected `object`, got `int` - at `\$.events\[0\]`"),
        (StreamCase, STREAM % '{"end": "stop"}, {"txt": "a"}', r"`\$.events\[1\]` is none of text"),
        (StreamCase, STREAM % '{"text": "a"}', "the last of its `events`"),
        (StreamCase, STREAM % "", "the last of its `events`"),
        (StreamCase, STREAM.replace('"chunks": [], ', "") % '{"end": "stop"}', "no case.sse beside it"),
        (HistoryCase, '{"name": "n", "quirk": "q", "messages": []}', "missing required field `sent`"),
        (PromptCase, PROMPT % ("xml", "stop"), r"'xml' - at `\$.dialect`"),
        (PromptCase, PROMPT % ("tool_use", "end"), r"'end' - at `\$.finish`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, kind: type[Case], text: str, words: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(BadFileError, match=words) as caught:
        read_case(path, kind)
    assert "case.json: " in str(caught.value)
    assert "README" in str(caught.value)
