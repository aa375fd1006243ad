"""The answers of the mock provider, and their text as it is found in the output of a relay."""

import json
import re
from dataclasses import asdict, dataclass
from itertools import islice

_STORY = (
    "The harbour was quiet when the first boats came back. Nobody spoke of the storm, and nobody had to: it stood in"
    " their faces. “We counted the lights,” said the old man, “and there was one too many.” A child laughed; somewhere"
    " behind the sheds a dog began to bark, and then all of them did. Later, over soup that had gone cold twice, they"
    " agreed about almost everything — the hour, the wind, the colour of the sea — but not about the light.\n\n"
)
WORDS = tuple(f" {word}" for word in _STORY.split(" "))
"""The tokens of every answer, repeated as often as needed."""
_MARKDOWN = (
    "## What the keeper wrote down\n\nThe lamp was lit at **18:40**, `lamp.service` was restarted twice, and the"
    " [log](https://example.org/log) says why:\n\n- the oil was cold\n- the wick was *too* short\n\n"
    "```python\ndef lit(lamp: Lamp) -> bool:\n    if lamp.oil < 0.2:\n        raise Dark(lamp.name)\n"
    "    return lamp.on\n```\n\n"
    "| hour | wind | light |\n|---|---|---|\n| 18:40 | west | yes |\n| 19:10 | north | no |\n\n"
)
MARKDOWN = tuple(re.findall(r"\s*\S+|\s+$", _MARKDOWN))
"""The same, of an answer with headings, lists, code and tables."""

MODEL = "mock-1"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of `tokens` tokens: one every `every_ms` milliseconds, or with 0 as fast as they are read.

    The first token contains `number`, so that no two answers are equal. If `stays` is set the answer never ends, and
    one in `markdown` is always at a pace.
    """

    number: int
    tokens: int
    every_ms: float = 0.0
    stays: bool = False
    markdown: bool = False

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @property
    def text(self) -> str:
        """The whole text."""
        whole, rest = divmod(self.tokens - 1, len(WORDS))
        return self.first + "".join(WORDS) * whole + "".join(islice(WORDS, rest))

    @property
    def first(self) -> str:
        """The first token."""
        return f"#{self.number}:"


def text_in(received: bytes) -> str:
    """The text in an event stream of Callstream's protocol, of OpenAI's two or of the AI SDK's."""
    pieces: list[str] = []
    name = ""
    for line in _body(received).decode().split("\n"):
        field, _, value = line.rstrip("\r").partition(": ")
        if field == "event":
            name = value
        elif field == "data" and value.startswith("{"):
            pieces.append(_text(name, json.loads(value)))
        elif not field:
            name = ""
    return "".join(pieces)


def _text(name: str, data: dict[str, object]) -> str:
    match data:
        case {"delta": str(delta)} if name == "text":
            return delta
        case {"type": "text-delta" | "response.output_text.delta", "delta": str(delta)}:
            return delta
        case {"choices": [{"delta": {"content": str(content)}}]}:
            return content
        case _:
            return ""


def _body(received: bytes) -> bytes:
    """The body of an HTTP response in chunked encoding."""
    _, _, rest = received.partition(b"\r\n\r\n")
    pieces: list[bytes] = []
    at = 0
    while True:
        end = rest.index(b"\r\n", at)
        size = int(rest[at:end], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(rest[end + 2 : end + 2 + size])
        at = end + size + 4
