"""Requests for the Responses API that answer calls of a turn: approvals of its user, and results of the client."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from dialog_engine.chat.archive import TurnRecord
from dialog_engine.chat.client_calls import GivenResult
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.errors import ApprovalDecidedError, ApprovalExpiredError
from dialog_engine.facades.responses.encoder import Form
from dialog_engine.facades.responses.kept import OF_EACH, form_of, refused
from dialog_engine.facades.responses.request import ResponseRequest
from dialog_engine.http import turns
from dialog_engine.http.about import model_named
from dialog_engine.http.client_calls import MAX_RESULTS
from dialog_engine.http.repetition import answering
from dialog_engine.http.responses import about_turn
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Leaving
from dialog_engine.tool_calls.client_tools import outcome_of
from dialog_engine.tool_calls.values import AnswerKey, Approve, Given, Refuse


@dataclass(frozen=True, slots=True)
class Asked:
    """A response that a request has asked for, and its turn."""

    form: Form
    turn: turns.SentTurn


async def answered(
    wanted: ResponseRequest,
    request: Request,
    engine: Services,
    sender: Principal,
    starting: StartingRequest,
    leaving: Leaving | None,
) -> Asked:
    """Commit the results of the client, all of them or none, and then what the user has said to requests for approval;
    of these what was decided before stands. The turn goes on with the last one; when it is left, by the rule of this
    request.

    Raises:
        ProblemError: the answers are for several turns, or there is no such model.
        EngineError: from `answering`, `Approvals.decide` and `ClientCalls.answer`.
    """
    model_named(wanted.model, engine)
    turn = await _turn_of(wanted, engine, sender.subject)
    about_turn(request, turn.turn_id, turn.session_id)
    async with answering(starting, engine, sender.subject, turn.turn_id) as answer_key:
        form = await _committed(wanted, turn.turn_id, engine, sender, answer_key, leaving)
    return Asked(form, turns.SentTurn(turn.turn_id, turn.session_id, turn.status, before=True))


async def _committed(
    wanted: ResponseRequest,
    turn_id: str,
    engine: Services,
    sender: Principal,
    answer_key: AnswerKey | None,
    leaving: Leaving | None,
) -> Form:
    first, *_ = [each.call for each in (*wanted.answers, *wanted.results)]
    engine.readers.answers(turn_id)
    own = {name: wanted.said[name] for name in OF_EACH}
    kept = (await engine.responses.keep_answer(turn_id, first, own, leaving)).response
    if wanted.results:
        given = [GivenResult(each.call, outcome_of(each.content, is_error=False)) for each in wanted.results]
        await engine.client_calls.answer(sender.subject, turn_id, given, sender.key_id, answer_key)
    for each in wanted.answers:
        said: Given = Refuse(each.reason, key_id=sender.key_id, answer_key=answer_key)
        if each.approve:
            said = Approve(each.question_hash, None, key_id=sender.key_id, answer_key=answer_key)
        with suppress(ApprovalDecidedError, ApprovalExpiredError):
            await engine.approvals.decide(sender.subject, turn_id, each.call, said, sender.roles)
    if kept is None:
        listed: list[dict[str, Any]] = []
        kept = {"said": wanted.said, "listed": listed, **{name: {first: value} for name, value in own.items()}}
    return form_of(turn_id, kept, first)


async def _turn_of(wanted: ResponseRequest, engine: Services, subject: str) -> TurnRecord:
    turn_ids = {each.turn_id for each in wanted.answers}
    if wanted.results:
        turn_ids.add((await engine.client_calls.turn_of(subject, wanted.results[0].call)).turn_id)
    if len(turn_ids) > 1:
        raise refused("input", "the answers are for several turns")
    if len(wanted.results) > MAX_RESULTS:
        raise refused("input", f"has {len(wanted.results)} results; {MAX_RESULTS} are allowed")
    return await engine.archive.turn(subject, *turn_ids)
