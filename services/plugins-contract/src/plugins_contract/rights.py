"""Which subjects and roles may use which tools, as RIGHTS_FILE says. Engines offer, and workers run, nothing else."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Annotated
from urllib.parse import unquote

import msgspec

from plugins_contract.reads import plain, spellings

_SPECIAL = re.compile("%(2a|3f|5b)", re.IGNORECASE)
"""What would have a meaning in a pattern once it is decoded."""
OF_KEY = "\x1fkey:"
"""Begins the role of a sender that is one of several people behind a key; the subject of the key follows, whose rules
are for this sender too. No role of a key or a token can begin so."""

Pattern = Annotated[str, msgspec.Meta(min_length=1)]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For which senders, which tools. The patterns may have `*`, `?` and `[...]`.

    `tools` are patterns of `server/tool`. The rule is for whoever matches one of `subjects` or has one of `roles`; with
    neither it is for every sender.
    """

    tools: Annotated[tuple[Pattern, ...], msgspec.Meta(min_length=1)]
    subjects: tuple[Pattern, ...] = ()
    roles: tuple[Pattern, ...] = ()


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolPattern:
    """Matches tools of servers. The server ends at the first slash, so that a name with slashes is not ambiguous.

    `resource` matches the spellings of a resource.
    """

    server: re.Pattern[str]
    tool: re.Pattern[str]
    resource: re.Pattern[str]

    def matches(self, server: str, tool: str) -> bool:
        """Whether it matches this tool."""
        return bool(self.server.match(server) and self.tool.match(tool))

    def matches_any(self, server: str, tool: str, names: Iterable[str]) -> bool:
        """Whether it matches this tool, or the resource with these spellings."""
        if not self.server.match(server):
            return False
        return bool(self.tool.match(tool)) or any(self.resource.match(name) for name in names)


@dataclass(frozen=True, slots=True)
class Access:
    """The tools that one sender may use. Senders with the same access have equal values."""

    allowed: tuple[ToolPattern, ...]
    denied: tuple[ToolPattern, ...]

    def allows(self, server: str, tool: str) -> bool:
        """Whether the sender may use the tool: a rule allows it, and none denies it, in whatever spelling of a URI."""
        if not any(each.matches(server, tool) for each in self.allowed):
            return False
        names = spellings(tool) if self.denied else ()
        return not any(each.matches_any(server, tool, names) for each in self.denied)

    def sees(self, server: str) -> bool:
        """Whether the sender may use any tool of the server, as far as the rules say without its tools."""
        return any(each.server.match(server) for each in self.allowed)


class Rights:
    """The rules of a file. What no rule allows is denied."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError when `data` is not a TOML file of rules; the text says where."""
        try:
            content = msgspec.toml.decode(data, type=_Content)
        except msgspec.DecodeError as error:
            raise ValueError(f"is not a file of rights: {error}") from None
        self._allow = [_CompiledRule(rule) for rule in content.allow]
        self._deny = [_CompiledRule(rule) for rule in content.deny]

    def access(self, subject: str, roles: Sequence[str]) -> Access:
        """What a sender may use."""
        allowed, denied = (
            tuple(pattern for rule in rules if rule.is_for(subject, roles) for pattern in rule.tools)
            for rules in (self._allow, self._deny)
        )
        return Access(allowed, denied)


class _CompiledRule:
    def __init__(self, rule: Rule) -> None:
        self.tools = tuple(map(_tool_pattern, rule.tools))
        self._subjects = [_compiled(each) for each in rule.subjects]
        self._roles = [_compiled(each) for each in rule.roles]

    def is_for(self, subject: str, roles: Sequence[str]) -> bool:
        if not self._subjects and not self._roles:
            return True
        senders = [subject, *(role.removeprefix(OF_KEY) for role in roles if role.startswith(OF_KEY))]
        return any(each.match(sender) for each in self._subjects for sender in senders) or any(
            each.match(role) for each in self._roles for role in roles
        )


def _tool_pattern(text: str) -> ToolPattern:
    server, slash, tool = text.partition("/")
    if not server or not slash or not tool:
        raise ValueError(f"tools has {text!r}, which is not server/tool, such as git/* or */get_*")
    return ToolPattern(_compiled(server), _compiled(tool), _compiled(plain(_SPECIAL.sub(_escaped, tool))))


def _escaped(encoded: re.Match[str]) -> str:
    return f"[{unquote(encoded[0])}]"


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
