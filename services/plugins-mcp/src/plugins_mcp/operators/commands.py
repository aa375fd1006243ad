"""What the commands do: find letters, ask, act, tell. Answers go to standard output, all else to standard error."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from plugins_contract.connections import is_outage
from plugins_contract.dead_letters import DeadLetter, DeadLetters, Requeued
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_mcp.operators import display
from plugins_mcp.operators.arguments import Discard, Filters, List, Requeue, Selection, Show

DONE, NOT_DONE, WRONG = 0, 1, 2
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""How long after its deadline the end of a call is waited for."""
SHOWN_BEFORE_ASKING = 10


class NotATerminalError(Exception):
    """There is nobody to ask."""


async def carry_out(letters: DeadLetters, command: List | Show | Requeue | Discard) -> int:
    """Do it; the exit code. Raises what redis raises, and `NotATerminalError`."""
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
        _say("There are no dead letters" + (" like that." if command.filters != Filters(limit=50) else "."))
        return NOT_DONE
    if len(found) == command.filters.limit:
        _say(f"(the newest {len(found)}; --limit shows more)")
    return DONE


async def _show(letters: DeadLetters, command: Show) -> int:
    letter = await letters.find(command.name)
    if letter is None:
        _say(f"There is no dead letter '{display.plain(command.name)}', nor one of such a call.")
        return NOT_DONE
    if command.json:
        _print_json(display.as_json(letter))
    else:
        print(display.details(letter, await letters.now_ms()))  # noqa: T201
    return DONE


async def _selected(letters: DeadLetters, selection: Selection) -> list[DeadLetter | str]:
    """The letters that are meant, in the order of their deaths or as named; the name stands where there is none."""
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
            _tell(letter, "not found" if isinstance(letter, str) else "refused", why, command.selection)
        elif isinstance(letter, DeadLetter):
            ready.append(letter)
    if not ready:
        if not chosen:
            _say("There are no such dead letters.")
        return NOT_DONE
    risky = sum(letter.may_have_run for letter in ready)
    question = f"Run {_count(ready)} again, as new calls with {command.timeout_seconds:g} s each?"
    if risky:
        question = f"{risky} of them may have taken effect already, and may do so twice now. {question}"
    if not _agreed(question, ready, command.selection, "requeue"):
        return code if command.selection.dry_run else NOT_DONE
    waiting: list[tuple[DeadLetter, Requeued]] = []
    try:
        for letter in ready:
            done = await _put_back(letters, letter, command.timeout_seconds)
            if done is None:
                code = NOT_DONE
                _tell(letter, "gone", "somebody else took it away meanwhile", command.selection)
                continue
            if command.wait:
                waiting.append((letter, done))
            else:
                _tell(letter, "requeued", f"as call {done.correlation_id}", command.selection, requeued=done)
        while waiting:
            letter, done = waiting[0]
            outcome = await _outcome(letters, done)
            succeeded = outcome is not None and outcome.state is CallState.SUCCEEDED
            code = code if succeeded else NOT_DONE
            detail = display.told(outcome) if outcome else "no worker has ended it in time"
            text = f"as call {done.correlation_id}: {detail}"
            del waiting[0]
            _tell(letter, "requeued", text, command.selection, requeued=done, outcome=outcome)
    finally:
        # Interrupted, or Redis went away: what was done is done, and somebody may want to know under which name.
        for letter, done in waiting:
            text = f"as call {done.correlation_id}: its end was not seen"
            _tell(letter, "requeued", text, command.selection, requeued=done)
    return code


def _why_not(letter: DeadLetter | str, command: Requeue) -> str:
    if isinstance(letter, str):
        return "there is no such dead letter"
    if letter.request is None:
        return (
            f"it cannot be read ({letter.unreadable}): if a newer release wrote it, requeue it with that one; if not,"
            " nothing can run it: look at it with `dead show`, then discard it"
        )
    if letter.may_have_run and not command.may_have_run:
        return "it must run once and was begun, so it may have taken effect: --may-have-run runs it all the same"
    return ""


async def _put_back(letters: DeadLetters, letter: DeadLetter, timeout_seconds: float) -> Requeued | None:
    assert letter.request is not None, "what cannot be read was refused"  # noqa: S101 -- see _why_not
    deadline = await letters.now_ms() + int(timeout_seconds * 1000)
    new = letters.again(letter.request, deadline=deadline)
    try:
        return await letters.requeue(letter, new)
    except Exception as error:
        if not is_outage(error):
            raise
    # Was it done, and only the answer lost? The same step again tells, and does nothing twice.
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
            _tell(letter, "not found", "there is no such dead letter", command.selection)
    ready = [letter for letter in chosen if isinstance(letter, DeadLetter)]
    if not ready:
        if not chosen:
            _say("There are no such dead letters.")
        return NOT_DONE
    if not _agreed(f"Delete {_count(ready)} for good?", ready, command.selection, "discard"):
        return code if command.selection.dry_run else NOT_DONE
    for letter in ready:
        if await letters.discard(letter):
            _tell(letter, "discarded", "", command.selection)
        else:
            code = NOT_DONE
            _tell(letter, "gone", "somebody else took it away meanwhile", command.selection)
    return code


def _agreed(question: str, ready: list[DeadLetter], selection: Selection, verb: str) -> bool:
    """Whether it is to be done. A dry run says what would be, and is never agreed to.

    Raises:
        NotATerminalError: there is nobody to ask.
    """
    if selection.dry_run:
        for letter in ready:
            _tell(letter, f"would {verb}", letter.reason, selection)
        return False
    if selection.yes:
        return True
    if not sys.stdin.isatty():
        raise NotATerminalError
    for letter in ready[:SHOWN_BEFORE_ASKING]:
        _say(
            f"  {letter.id}  {display.plain(letter.word('server'))}/{display.plain(letter.word('tool'))}"
            f"  {display.plain(letter.reason)}"
        )
    if len(ready) > SHOWN_BEFORE_ASKING:
        _say(f"  and {len(ready) - SHOWN_BEFORE_ASKING} more")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        _say("Nothing was done.")
    return agreed


def _tell(
    letter: DeadLetter | str,
    result: str,
    detail: str,
    selection: Selection,
    *,
    requeued: Requeued | None = None,
    outcome: ToolOutcome | None = None,
) -> None:
    """Say what became of one letter."""
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
    # ASCII: whatever it is piped into, and whatever the letters hold.
    print(json.dumps(value), flush=True)  # noqa: T201


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
