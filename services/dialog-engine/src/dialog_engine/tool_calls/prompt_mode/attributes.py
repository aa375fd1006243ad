"""The attributes of a tag: read one after the other, up to the end of the tag."""

import html
import re
from dataclasses import dataclass

from dialog_engine.tool_calls.prompt_mode.source import Reading, Source

TAG_ENDS = ("/>", ">")

_NAME = re.compile(r"[\w.:\-]*")
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);")
"""The entities of XML. Others are text here: `?a=1&copy=2` has none."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What a tag has behind its own name. If it is not `sound`, some of it cannot be read as attributes."""

    attributes: tuple[tuple[str, str], ...]
    closed: bool
    """Whether it closes itself."""
    sound: bool = True

    def get(self, name: str) -> str | None:
        """The first attribute with that name."""
        return next((value for key, value in self.attributes if key == name), None)

    def without(self, *names: str) -> list[tuple[str, str]]:
        """All attributes but the first one with each of `names`."""
        left = list(self.attributes)
        for name in names:
            if (value := self.get(name)) is not None:
                left.remove((name, value))
        return left


def read_tag(source: Source) -> Reading[Tag]:
    """Read the rest of an opening tag.

    Raises:
        CutError: the text ended inside the tag.
    """
    found: list[tuple[str, str]] = []
    while True:
        name, mark = yield from attribute_begun(source)
        if mark in TAG_ENDS:
            return Tag(tuple(found), mark == "/>")
        if not mark:
            rest = yield from source.upto(">")
            return Tag(tuple(found), rest.endswith("/"), sound=False)
        value = yield from source.upto(mark)
        found.append((name, _ENTITY.sub(lambda entity: html.unescape(entity[0]), value)))


def attribute_begun(source: Source) -> Reading[tuple[str, str]]:
    """Read the next attribute of a tag as far as the quote before its value.

    Returns the name and the quote; "" and the end of the tag if it has no further attribute; and no quote if what comes
    next is neither.

    Raises:
        CutError: the text ended before that.
    """
    yield from source.space()
    if end := (yield from source.one_of(*TAG_ENDS)):
        return "", end
    name = yield from source.run(_NAME)
    yield from source.space()
    if not name or not (yield from source.one_of("=")):
        return "", ""
    yield from source.space()
    return name, (yield from source.one_of('"', "'")) or ""
