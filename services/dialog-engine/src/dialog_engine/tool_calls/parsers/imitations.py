"""Results that a model writes itself, by the tags in which it is given them, of whichever dialect."""

from dialog_engine.tool_calls.parsers.source import CutError, Reading, Source

CLOSERS = {"<tool_use_result>": "</tool_use_result>", "<function_results>": "</function_results>"}
OPENERS = tuple(CLOSERS)

MAX_PLAIN = 20_000
"""Characters of a result without tags inside. All of it is held back until its end is there; longer ones are none."""

INVENTED = (
    "you wrote its result yourself, and nothing was run. Results come from the tools alone, in the message after a"
    " call. Write the call, and nothing after it."
)

_NAMES = ("<name>", "<tool_name>")
_OPENING = (*_NAMES, "<result>", "<stdout>", "<error>")
_CLOSING = tuple(tag.replace("<", "</") for tag in _OPENING)


def head(source: Source, opener: str) -> Reading[str | None]:
    """The first of the tags that stand in results; "" for a result without any, which is read to its end; None where
    another begins before that.

    Raises:
        CutError: it is neither, as far as there is text.
    """
    yield from source.space()
    tag = yield from source.one_of(*_OPENING)
    if tag is None:
        _, end = yield from source.until(CLOSERS[opener], *OPENERS)
        return None if end in OPENERS else ""
    return tag


def named(source: Source, opener: str, tag: str) -> Reading[tuple[str, str]]:
    """After `tag`: the name of the tool, "" if none is named, and the last tag that is read."""
    try:
        while tag not in _NAMES:
            yield from source.space()
            name_tag = yield from source.one_of(*_NAMES)
            if name_tag is None:
                return "", tag
            tag = name_tag
        name, tag = yield from source.until(*_inside(opener))
    except CutError:
        source.rest()
        return "", tag
    return name.strip(), tag


def rest(source: Source, opener: str, tag: str) -> Reading[None]:
    """What follows `tag`. A result that is not closed ends where no tag follows on one that closes."""
    last: str | None = tag
    try:
        while last not in (None, CLOSERS[opener]):
            if last in _OPENING:
                _, last = yield from source.until(*_inside(opener))
            else:
                yield from source.space()
                last = yield from source.one_of(*_inside(opener))
    except CutError:
        source.rest()


def _inside(opener: str) -> tuple[str, ...]:
    return (CLOSERS[opener], *_OPENING, *_CLOSING)
