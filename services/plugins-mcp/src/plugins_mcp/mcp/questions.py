"""Questions of a server, as they are put to a person, or why they are not.

From 2026-07-28 on a server answers a call with them. Before that it asks by requests of its own while the call is open
(`dialogue`), or refuses the call until an address was visited (-32042).
"""

from collections.abc import Collection, Mapping
from typing import Any

from mcp.types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponses,
)
from pydantic import TypeAdapter, ValidationError

from plugins_contract.errors import ErrorCode
from plugins_contract.questions import (
    MAX_MESSAGE,
    MAX_ROUNDS,
    InputRequired,
    NextRound,
    QuestionKind,
    ServerQuestion,
    unfit,
)
from plugins_mcp.mcp.calls import InputAsked, Rejected, SendState

KEY = "question"
"""The key of a question that a server asks by a request of its own."""
_addresses = TypeAdapter(list[ElicitRequestURLParams])


def asked(result: InputRequiredResult, send_state: SendState, listed: Collection[str]) -> InputAsked | Rejected:
    """What the server asks, if the producer of the call puts such questions to a person. `listed`: see `unfit`."""
    wanted = result.input_requests or {}
    if other := [each.method for each in wanted.values() if not isinstance(each, ElicitRequest)]:
        return refused(f"asked for {other[0]}, which is not offered to it")
    if not wanted:
        return refused("kept asking for the call again, with a state and no question")
    number = send_state.next_round.number if send_state.next_round else 1
    required = InputRequired(tuple(_question(key, each) for key, each in wanted.items()), result.request_state)
    return _fit(required, number, listed, may_ask=send_state.may_ask)


def addresses_required(data: Any, send_state: SendState, listed: Collection[str]) -> InputAsked | Rejected | None:
    """What a server wants visited before it takes the call; None when it does not say so in a readable way."""
    try:
        wanted = _addresses.validate_python(data["elicitations"])
    except (TypeError, KeyError, ValidationError):
        return None
    if not wanted:
        return None
    number = send_state.next_round.number if send_state.next_round else 1
    questions = {each.url: _question(each.elicitation_id or each.url, ElicitRequest(params=each)) for each in wanted}
    return _fit(InputRequired(tuple(questions.values())), number, listed, may_ask=send_state.dialogue is not None)


def asked_in_call(params: ElicitRequestParams, number: int, listed: Collection[str] = ()) -> InputAsked | Rejected:
    """What the server asks by a request of its own in a round of a call."""
    return _fit(InputRequired((_question(KEY, ElicitRequest(params=params)),)), number, listed, may_ask=True)


def _fit(required: InputRequired, number: int, listed: Collection[str], *, may_ask: bool) -> InputAsked | Rejected:
    if not may_ask:
        return cannot_be_asked()
    if number > MAX_ROUNDS:
        return refused(f"asked again after {MAX_ROUNDS} rounds of questions")
    if why := unfit(required, listed):
        return refused(why)
    return InputAsked(required)


def refused(what: str) -> Rejected:
    """A call whose server wants what nobody here is asked for; `what` follows on "the server"."""
    return Rejected(ErrorCode.INPUT_REFUSED, f"the server {what}; nobody was asked, and the call did not go on")


def cannot_be_asked() -> Rejected:
    """A call whose server asked a question, and whose producer puts none to a person."""
    return refused("asked a question, and whoever requested this call cannot be asked")


def not_visited(brings: NextRound | None) -> Rejected | None:
    """Why a call is not sent again that its server takes once an address was visited: the person did not agree."""
    if brings is None or all(each.get("action") == "accept" for each in brings.responses.values()):
        return None
    message = "the person did not open the address that the server asks for; the call was not run"
    return Rejected(ErrorCode.INPUT_REFUSED, message)


def input_responses(responses: Mapping[str, Any]) -> InputResponses:
    """The answers of people, as the SDK sends them. Raises ValidationError for one that MCP does not have."""
    return {key: ElicitResult.model_validate(each) for key, each in responses.items()}


def _question(key: str, request: InputRequest) -> ServerQuestion:
    match request:
        case ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=form)):
            return ServerQuestion(key, QuestionKind.FORM, _cut(message), form=form)
        case ElicitRequest(params=ElicitRequestURLParams(message=message, url=url)):
            return ServerQuestion(key, QuestionKind.URL, _cut(message), url=url)
        case _:
            raise AssertionError(request)  # the others are refused before


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"
