"""Guards taken out of copies of the services: without one of them a scenario must break, and for the right reason.

Some guards stand behind others: a worker that wakes up gives up its calls by itself, and only when it does not are
RENEW and COMPLETE the ones that stop it. To see the inner guard at work the outer ones are taken out as well; with the
outer ones alone gone (`also_holds_with`) the scenario must still hold.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

SERVICES = ("plugins-contract", "callstream-runtime", "plugins-mcp", "dialog-engine")
LEDGER = "plugins-contract/src/plugins_contract/ledger"
WORKER = "plugins-mcp/src/plugins_mcp"
ENGINE = "dialog-engine/src/dialog_engine"


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` becomes `new` in a file of `services`, where it stands exactly once."""

    file: str
    old: str
    new: str = ""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A guard is missing: `scenario` breaks, and what it finds begins with one of these.

    `quick` ones are part of `make test-all`.
    """

    scenario: str
    findings: tuple[str, ...]
    cuts: tuple[Edit, ...] = ()
    redis_options: tuple[str, ...] = ()
    quick: bool = False


_NEVER_GIVES_UP = (
    Edit(f"{WORKER}/leases.py", "if lease.may_run_elsewhere and", "if False and"),
    Edit(f"{WORKER}/leases.py", "time.monotonic() - self._loop_alive_at > self._times.loop_alive\n", "False\n"),
    Edit(f"{WORKER}/leases.py", "            lease.on_lost()", "            pass"),
)
"""A worker that wakes up goes on as if nothing had been: only the ledger's scripts stop it."""

STOPPED_BY_THE_LEDGER_ALONE = Mutation("workers_stopped", (), _NEVER_GIVES_UP)
"""Not a broken product: the fences of the ledger must be enough."""

_TAKEN_FROM_THE_LIVING = (
    "lease: a call was taken from a worker that lives",
    "I1: a call is unknown whose worker was not struck while it ran",
)
_WRITTEN_AFTER_ADOPTION = ("twice: its messages are", "fence: a write of a fenced engine was taken")

MUTATIONS = {
    # The other guards of the ledger's scripts are removed in tests/contract only: these two show that the checker of a
    # run notices such a thing, too.
    "START runs a once call again that was begun": Mutation("workers_killed",
        ("I4: a once call had its effect more than once",),
        (Edit(f"{LEDGER}/start.lua",
        "if doubtful or state == 'started' and class ~= 'repeatable' then return say('ABANDONED') end"),), quick=True),
    "RENEW asks for neither fence nor owner": Mutation(
        "workers_stopped",
        # The first is in the ledger for good; the observer sees the next two only if it looks in the milliseconds
        # between RENEW and COMPLETE. The last is what comes of them: with its fence put back the worker that stood
        # still speaks for the call, and a COMPLETE that asks for the fence believes it.
        (
            "I2: a call was put back though Redis had lost nothing of it",
            "I2: a lease was stolen back",
            "I2: the fence of a call went back",
            "I2: a call was ended by an attempt that was not the last one",
        ),
        (
            *_NEVER_GIVES_UP,
            Edit(f"{LEDGER}/renew.lua", "or not speaks(fence, state, known[2], known[4]) then", "then"),
            Edit(f"{LEDGER}/renew.lua", "if owner and owner ~= consumer and deliveries > 1 then return {'STALE'} end"),
        ),
        quick=True,
    ),
    "leases are not renewed": Mutation("workers_stopped", ("lease: a call was taken from a worker that lives",),
        (Edit(f"{WORKER}/leases.py", "self._renew_each(self._held_now(), loop)", "pass"),)),
    "no grace after an outage": Mutation(
        "redis_killed",
        _TAKEN_FROM_THE_LIVING,
        (
            # A worker renews its leases and writes its outcomes at once when Redis is back. The grace is for one that
            # is slower: here all are, but within the grace.
            Edit(
                f"{WORKER}/leases.py",
                "due = 0.0\n            except Exception",
                "due = time.monotonic() + 2 * self._times.renew\n            except Exception",
            ),
            Edit(f"{WORKER}/handler.py", "WRITE_RETRY_SECONDS = 0.5", "WRITE_RETRY_SECONDS = 1.2"),
            Edit(f"{WORKER}/takeover.py", "if not await self._may_take_over():", "if False:"),
        ),
    ),
    "no grace after a step of the clock": Mutation("clock_stepped", _TAKEN_FROM_THE_LIVING,
        (Edit("callstream-runtime/src/callstream_runtime/clock.py", "or stepped or restarted", "or restarted"),)),
    "Redis writes nothing down": Mutation("redis_killed",
        ("I7: calls are LOST though Redis wrote everything down", "I1: the ledger does not know a committed call"),
        redis_options=("--appendonly", "no")),
    "an outbox row goes when it is published": Mutation("doubled", ("I8: an open call has no outbox row",),
        (Edit(f"{ENGINE}/storage/outbox.py",
        'tx.execute_many("UPDATE outbox SET published_at = now_ms(), error = NULL WHERE seq = $1", calls)',
        'tx.execute_many("DELETE FROM outbox WHERE seq = $1", calls)'),)),
    "the rounds and results of a turn are not fenced": Mutation("engines_stopped", _WRITTEN_AFTER_ADOPTION,
        (Edit(f"{ENGINE}/storage/fence.py", "        raise TurnFencedError(turn.turn_id)", "        pass"),)),
    "the end of a turn is not fenced": Mutation("engines_stopped", _WRITTEN_AFTER_ADOPTION,
        (Edit(f"{ENGINE}/storage/turns.py",
        "AND owner = $owner AND epoch = $epoch AND status = 'running' RETURNING finished_at",
        "AND $owner <> '' AND $epoch > 0 RETURNING finished_at"),)),
    "the mailbox is not swept": Mutation("doubled", ("latency: an answer without its notification",),
        (Edit(f"{ENGINE}/calls/mailbox.py", "late or self._calls.quiet_for(self._times.quiet)", "()"),)),
    "a once call that was stopped while it ran is said to be cancelled": Mutation("stops",
        ("after the effect: a call is cancelled and had its effect",),
        (Edit(f"{WORKER}/decisions.py",
        '    if execution_class is ExecutionClass.ONCE:\n        return unknown("it was cancelled',
        '    if False:\n        return unknown("it was cancelled'),), quick=True),
    "a round with an answer is of the class of its tool": Mutation("questions_killed", ("twice: an answer was sent",),
        (Edit(f"{ENGINE}/tool_calls/questions/rules.py", "        execution_class=ExecutionClass.ONCE,\n"),)),
    "what was said until Stop is not kept": Mutation("stops",
        ("during text: what was said until Stop is not marked as interrupted",),
        (Edit(f"{ENGINE}/chat/service.py", "if interrupted and not text.strip() and not reasoning.strip():",
        "if interrupted:"),)),
    "an open call of a stopped turn gets no outcome": Mutation("stops", ("a tool that obeys: received",),
        (Edit(f"{ENGINE}/chat/service.py",
        "await self._rounds.add_result(turn, open_call.call, outcomes[open_call.request.correlation_id])",
        "outcomes[open_call.call.correlation_id]"),)),
}  # fmt: skip


def mutated_sources(folder: Path, *cuts: Edit) -> str:
    """A search path of copies with these cuts, to be put in front of the installed services.

    Raises:
        ValueError: the text of a cut is not there any more.
    """
    for service in SERVICES:
        shutil.copytree(ROOT / "services" / service / "src", folder / service / "src")
    for cut in cuts:
        file = folder / cut.file
        text = file.read_text()
        if text.count(cut.old) != 1:
            raise ValueError(f"{cut.file} has {cut.old!r} {text.count(cut.old)} times")
        file.write_text(text.replace(cut.old, cut.new))
    return os.pathsep.join(str(folder / service / "src") for service in SERVICES)
