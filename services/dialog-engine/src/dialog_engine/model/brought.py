"""What a request brings beside its question: instructions, images, tools of its client, how to sample, and what was
said before in the words of its client. It is stored with the turn, so that every round of it has all of that, at any
engine."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dialog_engine.model.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from dialog_engine.model.sampling import Sampling
from plugins_contract.catalog import ToolEntry
from plugins_contract.choice import ToolChoice
from plugins_contract.outcomes import MediaBlock

CLIENT_SERVER = "client"
"""The name of the server that users see for the tools of clients."""


class ClientCall(msgspec.Struct, frozen=True):
    """A tool call in the words of a client; `arguments` is the text that the model wrote."""

    id: str
    name: str
    arguments: str


class ClientMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as a client has sent it. `call_id` is the call that a tool's message answers, `media` are images of the
    user, or of a tool's result. `id` is that of one which was added to the conversation by itself; only such ones are
    of the system or the developer, and these are in `Brought.standing`."""

    role: Literal["user", "assistant", "tool", "system", "developer"]
    content: str
    media: tuple[MediaBlock, ...] = ()
    calls: tuple[ClientCall, ...] = ()
    call_id: str = ""
    id: str = ""

    @property
    def is_instruction(self) -> bool:
        """Whether it holds for all questions behind it."""
        return self.role in ("system", "developer")

    def as_message(self, names: dict[str, str]) -> Message:
        """The message as a model reads it. `names` are those of the tools of the calls before it, by their ids."""
        match self.role:
            case "user":
                return UserMessage(self.content, self.media)
            case "tool":
                return ToolMessage(self.call_id, names.get(self.call_id, ""), self.content, self.media)
            case "system" | "developer":
                return SystemMessage(self.content)
            case "assistant":
                names |= {call.id: call.name for call in self.calls}
                calls = tuple(ToolCall(call.id, "", call.name, call.arguments) for call in self.calls)
                return AssistantMessage(self.content, calls)


class ClientTool(msgspec.Struct, frozen=True, rename="camel"):
    """A tool that the client runs itself, as its request describes it."""

    name: str
    description: str
    input_schema: dict[str, Any]

    def entry(self) -> ToolEntry:
        """The tool as a model is offered it."""
        return ToolEntry(
            name=self.name,
            server=CLIENT_SERVER,
            tool=self.name,
            description=self.description,
            input_schema=self.input_schema,
        )


class Brought(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request brings beside the text of its question. `instructions` are for all rounds of its turn, behind the
    system prompt and `standing`, the instructions that were added to the conversation; `media` are the question's
    images, `said` is what comes before it where that is not in the store. With `stateless` a session that begins with
    it is not listed, and kept for a short time. `own_api`: the request is one of the engine's own API. `tools` are
    those that the client runs itself. `ask` are tools, as `server/tool` in which `*` stands for any characters, whose
    calls need approval whatever their policy is. `response` is what a protocol says of the request in its answers, if
    it keeps them; of requests that go on with the turn it has `metadata`, by the first call that each of them
    answers."""

    instructions: str = ""
    stateless: bool = False
    media: tuple[MediaBlock, ...] = ()
    said: tuple[ClientMessage, ...] = ()
    sampling: Sampling = Sampling()
    own_api: bool = False
    tools: tuple[ClientTool, ...] = ()
    ask: tuple[str, ...] = ()
    response: Mapping[str, Any] | None = None
    standing: str = ""

    def asks_for(self, server: str, tool: str) -> bool:
        """Whether the calls of a tool need approval by this request."""
        return bool(self.ask) and ToolChoice(allow=self.ask).allows(server, tool)

    def messages(self, question: str) -> Iterator[Message]:
        """What was said before, and the question."""
        names: dict[str, str] = {}
        for each in self.said:
            if not each.is_instruction:
                yield each.as_message(names)
        yield UserMessage(question, self.media)

    def questions(self) -> list[str]:
        """The messages of the user in `said`."""
        return [each.content for each in self.said if each.role == "user"]

    def all_media(self) -> list[MediaBlock]:
        """The images of all messages in their order."""
        return [*(block for each in self.said for block in each.media), *self.media]

    def with_media(self, blocks: Iterator[MediaBlock]) -> "Brought":
        """The same with `blocks` in place of its images."""
        said = tuple(replace(each, media=tuple(next(blocks) for _ in each.media)) for each in self.said)
        return replace(self, said=said, media=tuple(next(blocks) for _ in self.media))

    def committed(self) -> "Brought":
        """What a running turn needs of it."""
        return replace(self, media=(), said=(), response=None)


NOTHING_BROUGHT = Brought()
