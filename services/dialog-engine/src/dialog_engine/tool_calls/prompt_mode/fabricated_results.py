"""Recognises results that a model writes itself, by the tags of any dialect."""

from dialog_engine.tool_calls.prompt_mode.source import CutError, Reading, Source

CLOSERS = {"<tool_use_result>": "</tool_use_result>", "<function_results>": "</function_results>"}
OPENERS = tuple(CLOSERS)

MAX_PLAIN = 20_000
"""The longest result without inner tags. It is held back until its end; a longer text is not taken for a result."""

FABRICATED = (
    "you wrote its result yourself, and nothing was run. Results come from the tools alone, in the message after a"
    " call. Write the call, and nothing after it."
)

_NAMES = ("<name>", "<tool_name>")
_OPENING = (*_NAMES, "<result>", "<stdout>", "<error>")
_CLOSING = tuple(tag.replace("<", "</") for tag in _OPENING)


def head(source: Source, opener: str) -> Reading[str | None]:
    """Read the first inner tag of a result.

    Returns "" for a result without inner tags, which is read to its end, and None if another one begins before that.

    Raises:
        CutError: the text ended before this could be decided.
    """
    yield from source.space()
    tag = yield from source.one_of(*_OPENING)
    if tag is None:
        _, end = yield from source.until(CLOSERS[opener], *OPENERS)
        return None if end in OPENERS else ""
    return tag


def named(source: Source, opener: str, tag: str) -> Reading[tuple[str, str]]:
    """Read what follows `tag` up to the name of the tool. Returns the name, or "", and the last tag that was read."""
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
    """Read what follows `tag`. A result without its closing tag ends where no tag follows a closing inner tag."""
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
