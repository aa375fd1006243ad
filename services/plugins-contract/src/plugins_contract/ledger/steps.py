"""The steps of the ledger, one function per script: what it makes is the command that `Scripts` runs.

A script reads its keys and arguments by the names here. Its file says what it does and answers.
"""

from collections.abc import Sequence

from plugins_contract.ledger.scripts import Call, Held, Key, Text, script


@script
def incarnation(*, incarnation_key: Key, id_: str) -> None:
    """`id_` is a new one."""


@script
def enqueue(
    *,
    call: Key, common: Key, requests: Key, channel: Key, incarnation_key: Key, session: Key, workers: Key,
    id_: str, hash_: str, class_: str, deadline: Text, mailbox: str, event: bytes, signature: str,
    limit: int, offered_to: str, sent: int, lost_ms: int, server_name: str, streams: str, lease_ms: int,
) -> None:  # fmt: skip
    """`requests` is the stream of the pool that the call is for, or `common`, which all workers read.

    `server_name` is '' where the server keeps no state, and `session` any key then. The names of streams of workers
    that hold sessions begin with `streams`; `lease_ms` is the lease of one that has not renewed it.

    `signature` is '' for none, and `limit`, that of the backlog, 0. `offered_to` is the incarnation that it was or may
    have been offered to, '*' for any; `sent` is 0 when it certainly was not. `lost_ms` is how much of its latest writes
    a server may have lost for the next one to take such a call.
    """


@script
def cancel(
    *,
    of: Call, requests: Key, incarnation_key: Key, workers: Key,
    state: str, reply: bytes, unseen_state: str, unseen_reply: bytes, control: str, message: bytes, offered_to: str,
) -> None:  # fmt: skip
    """`message` is published to the channel `control`. `offered_to` is as in ENQUEUE, '' for none."""


@script
def audit(*, requests: Key, calls: Sequence[Key], silent_ms: int, max_bytes: int) -> None:
    """`calls` are of each call its ledger entry and its channel."""


@script
def lose(*, of: Call, requests: Key, silent_ms: int, found: str, state: str, reply: bytes) -> None:
    """`found` is the loss that the audit found."""


@script
def adopt(
    *,
    held: Held, call: Key, channel: Key,
    hash_: str, class_: str, deadline: Text, timeout_ms: int, mailbox: str, server: str, tool: str,
) -> None:  # fmt: skip
    """`deadline` is '' for none; `mailbox` may be ''."""


@script
def start(
    *,
    of: Call, held: Held, workers: Key, common: Key,
    token: str, max_starts: int, lease_ms: int, expired_reply: bytes, started_reply: bytes, lost_reply: bytes,
    reported_at: str, known_ms: int, stops_ms: int, requested_class: str, limit: int,
) -> None:  # fmt: skip
    """`started_reply` is the beginning of the notice, '' for no notice.

    `reported_at` is the run id of the server at which this worker has reported, '' while it is not known.
    `requested_class` and `limit`, the deadline or 0, are those of the request, which its producer may have signed.
    """


@script
def progress(*, of: Call, fence: Text, reply: bytes, kind: str) -> None: ...


@script
def complete(
    *, of: Call, held: Held, dead: Key, fence: Text, state: str, reply: bytes, reason: str, event: bytes
) -> None:
    """`reason` is that of the dead letter, '' when it is none; `event` is the request for it."""


@script
def hold(*, session: Key, stream: Key, server: str, token: str, lease_ms: int, streams: str) -> None:
    """`stream` is that of the worker's own pool; `streams` is as in ENQUEUE. `token` has no spaces."""


@script
def keep(*, stream: Key, sessions: Sequence[Key], held: bytes, lease_ms: int) -> None:
    """`held` is JSON: of each session the server and the fence."""


@script
def close(*, session: Key, server: str, mine: int, opened: str) -> None:
    """`mine` is the fence. `opened` is '1' when there was a session, whose state is lost, else '0'."""


@script
def forget(*, silent_ms: int, control: str, message: bytes, sessions: Sequence[Key]) -> None:
    """`message` is published to the channel `control`."""


@script
def release(*, call: Key, held: Held, fence: Text, lease_ms: int) -> None: ...


@script
def pass_(*, call: Key, held: Held, to: Key, id_: str, lease_ms: int) -> None:
    """`to` is the stream of the pool, and that of the entry again where none is known."""


@script
def bury(
    *,
    of: Call,
    requests: Key,
    entry: str,
    dead: Key,
    named: Key,
    reason: str,
    event: bytes,
    reply: bytes,
    state: str,
    enqueued: int,
) -> None:
    """`named` is another channel that the request names, or else that of the call. `id` is '' when it has none.

    `enqueued` is 1 for a request that was put on the stream by ENQUEUE, else 0.
    """


@script
def renew(*, call: Key, held: Held, fence: Text, token: str, class_: str, deadline: Text, mailbox: str) -> None: ...


@script
def report(*, workers: Key, consumer: str, server: str) -> None:
    """`consumer` is '' to ask only. `server` is the run id of the server to which it was written."""


@script
def retire(*, requests: Key, workers: Key, pools: Sequence[Key], consumer: str, free_ms: int) -> None: ...


@script
def tidy(*, requests: Key, workers: Key, pools: Sequence[Key], consumer: str, silent_ms: int) -> None:
    """`consumer` is the caller, which is never removed."""


@script
def recall(*, requests: Key, stream: Key, lease_ms: int, most: int, calls: str) -> None:
    """`most` requests are looked at. `calls` begins the names of ledger entries."""


@script
def requeue(
    *,
    dead: Key, requests: Key, call: Key, dead_call: Key,
    letter: str, event: bytes, new_event: bytes, signature: str, dead_id: str,
    id_: str, hash_: str, class_: str, deadline: Text, mailbox: str,
) -> None:  # fmt: skip
    """`event` is that of the letter as it was read."""


@script
def discard(*, dead: Key, letter: str, event: bytes) -> None:
    """`event` is that of the letter as it was read."""
