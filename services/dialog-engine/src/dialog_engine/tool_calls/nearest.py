"""What there is in the place of a name that does not exist, for the model that wrote it. Pure."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

CLOSE = 0.6
"""How much alike two names must be, of 1, for the one to be meant by the other."""
MAX_MEANT = 3
MAX_LISTED = 20
"""Names that are told at most: a model that needs them all has other ways to ask."""
MAX_NAME = 64
"""Characters of a name that count; longer ones are nobody's."""


def instead(name: str, names: Iterable[str], what: str, *, guess: bool = True) -> str:
    """What to write instead of `name`: those of `names` that come nearest first, as far as there is place.

    They are called `what`. With `guess` those that may be meant are told by themselves.
    """
    known = [*names]
    close = nearest(name, known)
    listed = [*close, *(other for other in known if other not in close)][:MAX_LISTED]
    more = f", and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    meant = f"Did you mean {' or '.join(close[:MAX_MEANT])}? " if close and guess else ""
    return f"{meant}{what}: {', '.join(listed) or 'none at the moment'}{more}."


def nearest(name: str, names: Sequence[str]) -> list[str]:
    """Those that are much like `name`, the nearest first. A tool may be named without its server, or with another."""
    server, own = _parts(name[:MAX_NAME])
    matcher = SequenceMatcher(b=own)
    likeness: dict[str, tuple[float, bool]] = {}
    for other in names:
        its_server, its_own = _parts(other)
        like = _like(matcher, its_own)
        if not server and its_server:
            like = max(like, _like(matcher, other.lower()))
        if like:
            likeness[other] = like, server == its_server
    return sorted(likeness, key=likeness.__getitem__, reverse=True)[:MAX_LISTED]


def _parts(name: str) -> tuple[str, str]:
    """Server, "" if none is named, and the tool's own name."""
    first, separator, own = name.lower().partition("__")
    return (first, own) if separator else ("", first)


def _like(matcher: SequenceMatcher[str], name: str) -> float:
    """How much the name is like that of the matcher, 0 if not much."""
    matcher.set_seq1(name)
    if matcher.real_quick_ratio() < CLOSE or matcher.quick_ratio() < CLOSE:
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= CLOSE else 0.0
