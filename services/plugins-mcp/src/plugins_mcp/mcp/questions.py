"""Questions of a server in the answer to a call, as they are put to a person, or why they are not."""

from collections.abc import Collection, Mapping
from typing import Any

from mcp.types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponses,
)

from plugins_contract.errors import ErrorCode
from plugins_contract.questions import MAX_MESSAGE, MAX_ROUNDS, InputRequired, QuestionKind, ServerQuestion, unfit
from plugins_mcp.mcp.calls import InputAsked, Rejected, SendState


def asked(result: InputRequiredResult, send_state: SendState, listed: Collection[str]) -> InputAsked | Rejected:
    """What the server asks, if the producer of the call puts such questions to a person. `listed`: see `unfit`."""
    number = send_state.next_round.number if send_state.next_round else 1
    wanted = result.input_requests or {}
    if other := [each.method for each in wanted.values() if not isinstance(each, ElicitRequest)]:
        return refused(f"asked for {other[0]}, which is not offered to it")
    if not wanted:
        return refused("kept asking for the call again, with a state and no question")
    if not send_state.may_ask:
        return refused("asked a question, and whoever requested this call cannot be asked")
    if number > MAX_ROUNDS:
        return refused(f"asked again after {MAX_ROUNDS} rounds of questions")
    required = InputRequired(tuple(_question(key, each) for key, each in wanted.items()), result.request_state)
    if why := unfit(required, listed):
        return refused(why)
    return InputAsked(required)


def refused(what: str) -> Rejected:
    """A call whose server wants what nobody here is asked for; `what` follows on "the server"."""
    return Rejected(ErrorCode.INPUT_REFUSED, f"the server {what}; nobody was asked, and the call did not go on")


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
