"""Which tools one message may use: its sender chooses, its turn keeps it, and each of its requests says it."""

from collections.abc import Iterable

import msgspec

from plugins_contract.reads import plain, spellings

MAX_ENTRIES = 50
"""The most names in each list of a choice: each tool of a catalog is compared with each of them."""
MAX_ENTRY_CHARS = 200


class ToolChoice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A part of the tools that the sender may use; it never adds one.

    `servers` are names of servers, and `allow` and `deny` are `server/tool`, by the name that the server gives its
    tool; the server ends at the first slash. In all of them `*` stands for any characters. None: no restriction. What
    `deny` says of a resource holds for every spelling of its URI.
    """

    servers: tuple[str, ...] | None = None
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    def allows(self, server: str, tool: str) -> bool:
        """Whether the message may use the tool."""
        if self.servers is not None and not any(_matches(each, server) for each in self.servers):
            return False
        if self.allow is not None and not _any(self.allow, server, tool):
            return False
        return not (self.deny and self._denies(server, tool))

    def _denies(self, server: str, tool: str) -> bool:
        names = spellings(tool)
        for part, _, rest in (each.partition("/") for each in self.deny):
            if _matches(part, server) and (_matches(rest, tool) or any(_matches(plain(rest), name) for name in names)):
                return True
        return False

    def sees(self, server: str) -> bool:
        """Whether the message may use any tool of the server, as far as the choice says without its tools."""
        if self.servers is not None and not any(_matches(each, server) for each in self.servers):
            return False
        return self.allow is None or any(_matches(each.partition("/")[0], server) for each in self.allow)


def encode_choice(choice: ToolChoice | None) -> str:
    """The choice as a column holds it; '' for none."""
    return msgspec.json.encode(choice).decode() if choice else ""


def decode_choice(text: str) -> ToolChoice | None:
    """The choice in a column."""
    return msgspec.json.decode(text, type=ToolChoice) if text else None


def _any(patterns: Iterable[str], server: str, tool: str) -> bool:
    return any(
        _matches(part, server) and _matches(rest, tool) for part, _, rest in (each.partition("/") for each in patterns)
    )


def _matches(pattern: str, text: str) -> bool:
    """Whether `*` in the pattern can stand for something that makes it the text. Linear: patterns are a user's."""
    if "*" not in pattern:
        return pattern == text
    first, *middle, last = pattern.split("*")
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in middle:
        if (found := text.find(part, at, end)) < 0:
            return False
        at = found + len(part)
    return True
