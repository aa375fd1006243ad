"""The commands of `plugins-mcp dead`: list, show, requeue and discard dead letters."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.dead_letters import DeadLetter, DeadLetters, Requeued
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_mcp.operators import display
from plugins_mcp.operators.arguments import Discard, Filters, List, Requeue, Selection, Show
from plugins_mcp.operators.exit_codes import DONE, NOT_DONE

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""How long after its deadline the outcome of a call is waited for."""
SHOWN_BEFORE_CONFIRMING = 10


class NotATerminalError(Exception):
    """A confirmation is needed, and standard input is not a terminal."""


async def carry_out(letters: DeadLetters, command: List | Show | Requeue | Discard) -> int:
    """Run one command; returns its exit code. Raises `RedisUnavailable`, and `NotATerminalError`."""
    match command:
        case List():
            return await _list(letters, command)
        case Show():
            return await _show(letters, command)
        case Requeue(selection):
            return await _requeue(letters, command, await _selected(letters, selection))
        case Discard(selection):
            return await _discard(letters, command, await _selected(letters, selection))


async def _list(letters: DeadLetters, command: List) -> int:
    found = [letter async for letter in _matching(letters, command.filters)]
    if command.json:
        for letter in found:
            _print_json(display.as_json(letter))
    elif found:
        width = shutil.get_terminal_size((100, 24)).columns
        print(display.table(found, await letters.now_ms(), width=max(width, 80)))  # noqa: T201
    if not found:
        _print_error("There are no dead letters" + (" that match." if command.filters != Filters(limit=50) else "."))
        return NOT_DONE
    if len(found) == command.filters.limit:
        _print_error(f"(the newest {len(found)}; --limit shows more)")
    return DONE


async def _show(letters: DeadLetters, command: Show) -> int:
    letter = await letters.find(command.name)
    if letter is None:
        _print_error(f"There is no dead letter with the id or correlation id '{display.plain(command.name)}'.")
        return NOT_DONE
    if command.json:
        _print_json(display.as_json(letter))
    else:
        print(display.details(letter, await letters.now_ms()))  # noqa: T201
    return DONE


async def _selected(letters: DeadLetters, selection: Selection) -> list[DeadLetter | str]:
    """The selected letters, oldest first or in the order of their names; a name stands for a letter that is missing."""
    if not selection.names:
        newest_first: list[DeadLetter | str] = [letter async for letter in _matching(letters, selection.filters)]
        return newest_first[::-1]
    return [await letters.find(name) or name for name in dict.fromkeys(selection.names)]


async def _matching(letters: DeadLetters, filters: Filters) -> AsyncGenerator[DeadLetter]:
    since_ms = filters.since_ms or 0
    if filters.since_seconds is not None:
        since_ms = await letters.now_ms() - int(filters.since_seconds * 1000)
    left = filters.limit
    async with aclosing(letters.newest_first(since_ms=max(0, since_ms))) as found:
        async for letter in found:
            if not _passes(letter, filters):
                continue
            yield letter
            if left is not None:
                left -= 1
                if left == 0:
                    return


def _passes(letter: DeadLetter, filters: Filters) -> bool:
    return (
        filters.server in ("", letter.word("server"))
        and (filters.tool in ("", letter.word("tool")) or filters.tool == letter.word("tool_name"))
        and filters.subject in ("", letter.word("subject"))
        and filters.reason.lower() in letter.reason.lower()
    )


async def _requeue(letters: DeadLetters, command: Requeue, chosen: list[DeadLetter | str]) -> int:
    ready: list[DeadLetter] = []
    code = DONE
    for letter in chosen:
        why = _why_not(letter, command)
        if why:
            code = NOT_DONE
            _report(letter, "not found" if isinstance(letter, str) else "refused", why, command.selection)
        elif isinstance(letter, DeadLetter):
            ready.append(letter)
    if not ready:
        if not chosen:
            _print_error("There are no dead letters that match.")
        return NOT_DONE
    risky = sum(letter.may_have_run for letter in ready)
    question = f"Run {_count(ready)} again, as new calls with {command.timeout_seconds:g} s each?"
    if risky:
        question = f"{risky} of them may have taken effect already, and would take effect twice. {question}"
    if not _confirmed(question, ready, command.selection, "requeue"):
        return code if command.selection.dry_run else NOT_DONE
    waiting: list[tuple[DeadLetter, Requeued]] = []
    try:
        for letter in ready:
            done = await _requeue_one(letters, letter, command)
            if done is None:
                code = NOT_DONE
                _report(letter, "gone", "it was removed meanwhile", command.selection)
                continue
            if command.wait:
                waiting.append((letter, done))
            else:
                _report(letter, "requeued", f"as call {done.correlation_id}", command.selection, requeued=done)
        while waiting:
            letter, done = waiting[0]
            outcome = await _outcome(letters, done)
            succeeded = outcome is not None and outcome.state is CallState.SUCCEEDED
            code = code if succeeded else NOT_DONE
            detail = display.outcome_text(outcome) if outcome else "no worker finished it in time"
            text = f"as call {done.correlation_id}: {detail}"
            del waiting[0]
            _report(letter, "requeued", text, command.selection, requeued=done, outcome=outcome)
    finally:
        # After an interruption or an outage: report the new calls, which exist already.
        for letter, done in waiting:
            text = f"as call {done.correlation_id}: its outcome was not seen"
            _report(letter, "requeued", text, command.selection, requeued=done)
    return code


def _why_not(letter: DeadLetter | str, command: Requeue) -> str:
    if isinstance(letter, str):
        return "there is no such dead letter"
    if letter.request is None:
        return (
            f"it cannot be decoded ({letter.unreadable}): if a newer release wrote it, requeue it with that release;"
            " otherwise it cannot be run: check it with `dead show`, then discard it"
        )
    if letter.request.next_round:
        return "it brings the answers to questions of its server, which are sent once: discard it"
    if letter.may_have_run and not command.may_have_run:
        return "it must run only once and was started, so it may have taken effect: --may-have-run runs it again"
    return ""


async def _requeue_one(letters: DeadLetters, letter: DeadLetter, command: Requeue) -> Requeued | None:
    assert letter.request is not None, "letters that cannot be decoded are refused"  # noqa: S101 -- see _why_not
    deadline = await letters.now_ms() + int(command.timeout_seconds * 1000)
    new = letters.again(letter.request, deadline=deadline, approved_by="operator" if command.approve else "")
    try:
        return await letters.requeue(letter, new)
    except RedisUnavailable:
        # The command may have taken effect and only its answer was lost. It is idempotent, so it is repeated.
        return await letters.requeue(letter, new)


async def _outcome(letters: DeadLetters, requeued: Requeued) -> ToolOutcome | None:
    while (outcome := await letters.outcome(requeued.correlation_id)) is None:
        if await letters.now_ms() > requeued.deadline + GRACE_SECONDS * 1000:
            return None
        await asyncio.sleep(POLL_SECONDS)
    return outcome


async def _discard(letters: DeadLetters, command: Discard, chosen: list[DeadLetter | str]) -> int:
    code = DONE
    for letter in chosen:
        if isinstance(letter, str):
            code = NOT_DONE
            _report(letter, "not found", "there is no such dead letter", command.selection)
    ready = [letter for letter in chosen if isinstance(letter, DeadLetter)]
    if not ready:
        if not chosen:
            _print_error("There are no dead letters that match.")
        return NOT_DONE
    if not _confirmed(f"Delete {_count(ready)} for good?", ready, command.selection, "discard"):
        return code if command.selection.dry_run else NOT_DONE
    for letter in ready:
        if await letters.discard(letter):
            _report(letter, "discarded", "", command.selection)
        else:
            code = NOT_DONE
            _report(letter, "gone", "it was removed meanwhile", command.selection)
    return code


def _confirmed(question: str, ready: list[DeadLetter], selection: Selection, verb: str) -> bool:
    """Whether the operator confirms. A dry run prints what would be done, and counts as no.

    Raises:
        NotATerminalError: standard input is not a terminal.
    """
    if selection.dry_run:
        for letter in ready:
            _report(letter, f"would {verb}", letter.reason, selection)
        return False
    if selection.yes:
        return True
    if not sys.stdin.isatty():
        raise NotATerminalError
    for letter in ready[:SHOWN_BEFORE_CONFIRMING]:
        _print_error(
            f"  {letter.id}  {display.plain(letter.word('server'))}/{display.plain(letter.word('tool'))}"
            f"  {display.plain(letter.reason)}"
        )
    if len(ready) > SHOWN_BEFORE_CONFIRMING:
        _print_error(f"  and {len(ready) - SHOWN_BEFORE_CONFIRMING} more")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    confirmed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not confirmed:
        _print_error("Nothing was done.")
    return confirmed


def _report(
    letter: DeadLetter | str,
    result: str,
    detail: str,
    selection: Selection,
    *,
    requeued: Requeued | None = None,
    outcome: ToolOutcome | None = None,
) -> None:
    """Print the result for one letter."""
    name = letter if isinstance(letter, str) else letter.id
    if not selection.json:
        print(f"{display.plain(name)}  {result}{': ' * bool(detail)}{display.plain(detail)}")  # noqa: T201
        return
    line: dict[str, Any] = {"id": name, "result": result, "detail": detail}
    if isinstance(letter, DeadLetter):
        line["correlationId"] = letter.correlation_id
    if requeued is not None:
        line |= {"newCorrelationId": requeued.correlation_id, "deadline": requeued.deadline}
    if outcome is not None:
        line["outcome"] = msgspec.to_builtins(outcome)
    _print_json(line)


def _count(ready: list[DeadLetter]) -> str:
    return "1 dead letter" if len(ready) == 1 else f"{len(ready)} dead letters"


def _print_json(value: dict[str, Any]) -> None:
    # ASCII, so that any pipe takes it, whatever the letters contain.
    print(json.dumps(value), flush=True)  # noqa: T201


def _print_error(text: str) -> None:
    sys.stderr.write(f"{text}\n")
