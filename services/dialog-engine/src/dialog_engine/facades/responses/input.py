"""The items that a request for the Responses API sends. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dialog_engine.facades.images import RefusedError, image_of
from dialog_engine.facades.openai.request import storable
from dialog_engine.facades.responses.ids import APPROVAL, FUNCTION_CALL, asked_for, named, of_item
from dialog_engine.model import ClientCall, ClientMessage
from dialog_engine.tool_calls.approvals.rules import MAX_REASON
from plugins_contract.outcomes import ContentBlock, MediaBlock, TextBlock


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class Item(msgspec.Struct):
    """An item as a client sends it."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | list[_Part] | None = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[_Part] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the user says to a request for approval of a call of a turn."""

    turn_id: str
    call: str
    question_hash: str
    approve: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a call of a function of the client has returned."""

    call: str
    content: Sequence[ContentBlock]


class InputReader:
    """Reads the items of a request. Those up to the last one with an id of ours are in the store, which is `behind` a
    turn; what follows is `new`. `refers` is that item where it must be there.

    The question is the last message of the user; without one the request ends with `answers`.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.instructions: list[str] = []
        self.said: list[ClientMessage] = []
        self.new: list[ClientMessage] = []
        self.answers: list[Answer | Result] = []
        self.behind = self.refers = ""
        self._calls: dict[str, bool] = {}
        """The calls of functions in the request, and whether they are ours."""
        for number, item in enumerate(items):
            self._take(item, f"input[{number}]")
        self.question = ClientMessage("user", "")
        if not self.answers:
            self._find_question()

    def _take(self, item: Item, where: str) -> None:
        if item.type == "mcp_approval_response":
            self.answers.append(_answer(item, where))
            return
        if item.type == "function_call_output":
            self._output(item, where)
            return
        if item.type == "message" and item.role == "user" and any(map(self._is_open, self.answers)):
            raise RefusedError(
                where, "what an item before it answers goes on without it: send it in a request behind that"
            )
        self.answers = []
        found = of_item(item.id or "") if item.role != "user" else None
        self._read(item, where, is_ours=found is not None)
        if found:
            self.behind, self.refers = found.owner, (item.id or "") if item.type == "item_reference" else ""
            self.new = []
            if ours := named(item.id or "", FUNCTION_CALL):
                self._calls[ours.rest] = True

    def _is_open(self, answer: Answer | Result) -> bool:
        """Whether it answers something that is not in the request."""
        return isinstance(answer, Answer) or answer.call not in self._calls

    def _read(self, item: Item, where: str, *, is_ours: bool) -> None:
        match item.type:
            case "message":
                self._message(item, where)
            case "mcp_call":
                call = _call(item, storable(item.id, f"{where}.id") or where, where)
                self._say(ClientMessage("assistant", "", calls=(call,)))
                self._say(ClientMessage("tool", content_of(item.output, f"{where}.output")[0], call_id=call.id))
            case "function_call":
                self._called(_call(item, storable(item.call_id, f"{where}.call_id"), where))
            case "reasoning" | "mcp_list_tools" | "mcp_approval_request":
                pass
            case "item_reference" if is_ours:
                pass
            case "item_reference":
                raise RefusedError(f"{where}.id", "is not the id of an item of this server")
            case _:
                raise RefusedError(f"{where}.type", f"{item.type[:100]!r} is not understood here: leave the item out")

    def _message(self, item: Item, where: str) -> None:
        text, media = content_of(item.content, f"{where}.content")
        if media and item.role != "user":
            raise RefusedError(f"{where}.content", "only messages of the user have images")
        match item.role:
            case "system" | "developer":
                self.instructions.append(text)
            case "user" | "assistant":
                self._say(ClientMessage(item.role, text, media))
            case _:
                raise RefusedError(f"{where}.role", "must be user, assistant, system or developer")

    def _called(self, call: ClientCall) -> None:
        """A call belongs to the message of the model before it."""
        self._calls[call.id] = False
        for messages in (self.said, self.new):
            is_of_model = bool(messages) and messages[-1].role == "assistant"
            last = messages.pop() if is_of_model else ClientMessage("assistant", "")
            messages.append(msgspec.structs.replace(last, calls=(*last.calls, call)))

    def _output(self, item: Item, where: str) -> None:
        """The result of a call of a function: an answer, or a part of what was said before the question."""
        call_id = storable(item.call_id, f"{where}.call_id")
        text, images = content_of(item.output, f"{where}.output")
        self.answers.append(Result(call_id, [*([TextBlock(text)] if text or not images else []), *images]))
        message = ClientMessage("tool", text, images, call_id=call_id)
        self.said.append(message)
        if not self._calls.get(call_id):
            self.new.append(message)

    def _say(self, message: ClientMessage) -> None:
        self.said.append(message)
        self.new.append(message)

    def _find_question(self) -> None:
        if not self.said or self.said[-1].role != "user":
            raise RefusedError("input", "must end with a message of the user, or with answers to approvals or calls")
        self.question = self.said.pop()
        self.new.pop()
        if not self.question.content.strip() and not self.question.media:
            raise RefusedError("input", "the message of the user must not be empty")


def _call(item: Item, call_id: str, where: str) -> ClientCall:
    name, arguments = storable(item.name, f"{where}.name"), storable(item.arguments, f"{where}.arguments")
    return ClientCall(call_id, name, arguments)


def _answer(item: Item, where: str) -> Answer:
    found = named(item.approval_request_id or "", APPROVAL)
    if found is None:
        raise RefusedError(f"{where}.approval_request_id", "is not the id of a request for approval")
    reason = storable((item.reason or "").strip(), f"{where}.reason")
    if len(reason) > MAX_REASON:
        raise RefusedError(f"{where}.reason", f"has {len(reason)} characters; {MAX_REASON} are allowed")
    return Answer(found.owner, *asked_for(found), approve=bool(item.approve), reason=reason)


def content_of(content: str | list[_Part] | None, where: str) -> tuple[str, tuple[MediaBlock, ...]]:
    """The text and the images of the field `where`. Raises RefusedError."""
    if content is None or isinstance(content, str):
        return storable(content, where), ()
    texts: list[str] = []
    media: list[MediaBlock] = []
    for number, part in enumerate(content):
        match part.type:
            case "input_text" | "output_text" | "text" | "refusal":
                texts.append(storable(part.text or part.refusal, f"{where}[{number}].text"))
            case "input_image" if part.image_url:
                media.append(image_of(part.image_url, f"{where}[{number}].image_url"))
            case _:
                raise RefusedError(f"{where}[{number}].type", "must be input_text or input_image with an image_url")
    return "\n\n".join(texts), tuple(media)
