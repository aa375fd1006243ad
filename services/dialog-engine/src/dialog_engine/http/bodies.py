"""What requests with messages have in common: their JSON bodies, and what they say of their readers."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import Header
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dialog_engine.http.problems import ProblemError
from dialog_engine.model import Leaving
from plugins_contract.choice import MAX_ENTRIES, MAX_ENTRY_CHARS, ToolChoice


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def unicode_text(text: str) -> str:
    """The text, if it can be stored and sent. Raises ValueError."""
    # JSON can spell half of a surrogate pair; nothing that stores or sends text can. PostgreSQL cannot store U+0000.
    try:
        text.encode()  # a fiftieth of the time that a look at each character takes, which is 40 ms for a million
    except UnicodeEncodeError:
        raise ValueError("must be Unicode text: it holds half a character (a lone surrogate)") from None
    if "\0" in text:
        raise ValueError("must not contain the character U+0000: remove it")
    return text


UnicodeText = Annotated[str, AfterValidator(unicode_text)]
Text = Annotated[UnicodeText, AfterValidator(_not_blank), Field(description="The user's text.")]


class Body(BaseModel):
    """A JSON body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)


def _names_a_tool(entry: str) -> str:
    server, slash, tool = entry.partition("/")
    if not server or not slash or not tool:
        raise ValueError("must be server/tool, such as git/* or */get_*")
    return entry


Entry = Annotated[UnicodeText, Field(min_length=1, max_length=MAX_ENTRY_CHARS)]
ToolPattern = Annotated[Entry, AfterValidator(_names_a_tool)]


class ToolsRequest(Body):
    """A part of the sender's tools. In all names `*` stands for any characters; a list that is left out restricts
    nothing."""

    servers: Annotated[
        list[Entry] | None, Field(max_length=MAX_ENTRIES, description="Only tools of these servers.")
    ] = None
    allow: Annotated[
        list[ToolPattern] | None,
        Field(max_length=MAX_ENTRIES, description="Only these tools, as `server/tool` from `GET /v1/tools`."),
    ] = None
    deny: Annotated[
        list[ToolPattern],
        Field(max_length=MAX_ENTRIES, description="None of these tools, also where `allow` has them."),
    ] = []

    def choice(self) -> ToolChoice:
        """The choice as a value of the core."""
        servers, allow = (None if each is None else tuple(each) for each in (self.servers, self.allow))
        return ToolChoice(servers=servers, allow=allow, deny=tuple(self.deny))


def check_length(message: str, max_chars: int) -> None:
    """Raises ProblemError when a message is longer than `max_chars`."""
    if len(message) > max_chars:
        detail = f"the message has {len(message)} characters; {max_chars} are allowed"
        raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "MESSAGE_TOO_LONG", detail, field="message")


OnDisconnect = Literal["continue", "cancel"]
WhenLeft = Annotated[OnDisconnect | None, Header(description="What becomes of the turn when nobody reads it any more.")]
"""The header `X-On-Disconnect`."""


@dataclass(frozen=True, slots=True)
class LeavingRule:
    """What becomes of turns that nobody reads any more: of all that say nothing else, or, for None, what is usual in
    the protocol of each; never of those in the background, which nobody reads. Those that are to be cancelled are after
    `seconds`."""

    always: OnDisconnect | None
    seconds: float

    def of(self, asked: OnDisconnect | None, usually: OnDisconnect, *, background: bool = False) -> Leaving | None:
        """Of a turn whose request asks for this, or for nothing, in a protocol in which that is usual."""
        rule = "continue" if background else self.always or usually
        return Leaving(self.seconds) if (asked or rule) == "cancel" else None
