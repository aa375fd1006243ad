"""The bodies of requests with a user's message, and what they ask."""

from http import HTTPStatus
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from dialog_engine.chat.archive import Asked
from dialog_engine.http.bodies import Body, Text, ToolsRequest, UnicodeText, check_length, unicode_text
from dialog_engine.http.client_calls import ClientToolRequest
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.services import Services
from dialog_engine.tool_calls.client_tools import MAX_TOOLS


class TurnRequest(Body):
    """A user's message."""

    message: Text | None = None
    parent_turn_id: (
        Annotated[
            UnicodeText,
            Field(
                description="The turn that the message follows, instead of the last one that is shown: another branch"
                " of the conversation begins there. Empty: the message begins the conversation."
            ),
        ]
        | None
    ) = None
    regenerate_of: (
        Annotated[UnicodeText, Field(description="A turn whose message is answered once more, in another branch.")]
        | None
    ) = None
    on_busy: Annotated[
        Literal["refuse", "queue"],
        Field(description="While another turn of the session runs: answer 409, or let the message wait."),
    ] = "refuse"
    on_open_question: Annotated[
        Literal["keep", "decline"],
        Field(
            description="While the running turn waits for its user only: do as `onBusy` says, or refuse what it asks,"
            " stop it, and begin this message after it."
        ),
    ] = "keep"
    client_message_id: (
        Annotated[
            UnicodeText,
            Field(
                min_length=1,
                max_length=100,
                description="The client's own name of this message, of which one that is sent again for up to a week"
                " begins no second turn.",
            ),
        ]
        | None
    ) = None
    model: Annotated[UnicodeText, Field(description="The model that answers: a name from `GET /v1/models`.")] | None = (
        None
    )
    tool_mode: (
        Annotated[UnicodeText, Field(description="How the model calls tools: one of `toolModes` from there.")] | None
    ) = None
    client_tools: (
        Annotated[
            list[ClientToolRequest],
            Field(max_length=MAX_TOOLS, description="Tools that the client runs: the turn waits for their results."),
        ]
        | None
    ) = None
    tools: (
        Annotated[ToolsRequest, Field(description="The tools that may be used, instead of those of the session.")]
        | None
    ) = None


class ChatRequest(TurnRequest):
    """A user's message, in an existing session or in a new one."""

    session_id: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(unicode_text)] | None = None
    stream: (
        Annotated[
            bool,
            Field(
                description="The turn's events, or one JSON document when it has ended or waits for its user. Left out:"
                " the document where `Accept` names `application/json` and not `text/event-stream`."
            ),
        ]
        | None
    ) = None


async def asked(body: TurnRequest, session_id: str | None, engine: Services, subject: str) -> Asked:
    """The user's text, and the turn that it follows, if the request names it.

    Raises:
        ProblemError: the message is missing or too long, or fields do not go together.
        TurnNotFoundError: there is no turn to be answered again.
    """
    if session_id is None:
        for name in sorted(body.model_fields_set & {"parent_turn_id", "regenerate_of"}):
            raise _misplaced(name, "names a turn of a session: send its sessionId, or leave this out")
    elif body.regenerate_of is not None:
        for name in sorted(body.model_fields_set & {"message", "parent_turn_id"}):
            raise _misplaced(name, "is that of the turn in regenerateOf: leave it out")
        return await engine.archive.question(subject, session_id, body.regenerate_of)
    if body.message is None:
        raise _misplaced("message", "is required")
    check_length(body.message, engine.max_message_chars)
    return Asked(body.message, body.parent_turn_id)


def _misplaced(name: str, why: str) -> ProblemError:
    errors = [{"field": to_camel(name), "message": why}]
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", f"{to_camel(name)}: {why}", errors=errors)
