"""`dialog-engine retention`: what the retention of sessions would erase now. It changes nothing."""

from collections.abc import Generator, Iterator

from dialog_engine.operators.audit import Query
from dialog_engine.personal_data.retention import DAY_MS, PAGE, Idle, Retention

_NEXT = (
    "SELECT s.session_id, s.subject, $3 - s.updated_at AS idle_ms,"
    " EXISTS (SELECT 1 FROM turns t WHERE t.session_id = s.session_id AND t.status = 'running') AS runs"
    " FROM sessions s WHERE s.session_id > $1 ORDER BY s.session_id LIMIT $2"
)


def would_be_erased(query: Query, retention: Retention, now_ms: int) -> Generator[str]:
    """A line for each rule, in the order in which they are tried."""
    total, over, running, oldest = ([0] * len(retention.rules) for _ in range(4))
    for session, runs in _sessions(query, now_ms):
        rule = retention.rule_of(session.subject)
        number = retention.rules.index(rule)
        total[number] += 1
        oldest[number] = max(oldest[number], session.idle_ms)
        over[number] += rule.is_over(session) and not runs
        running[number] += rule.is_over(session) and runs
    for number, rule in enumerate(retention.rules):
        kept = f"kept {rule.days} days" if rule.days else "kept without end"
        idle = f"the oldest is idle for {oldest[number] // DAY_MS} days"
        yield (
            f"{rule.pattern}  {kept}: {over[number]} of {total[number]} sessions would be erased now,"
            f" {running[number]} more when their turn has ended; {idle}"
        )


def _sessions(query: Query, now_ms: int) -> Iterator[tuple[Idle, bool]]:
    last = ""
    while rows := query(_NEXT, last, PAGE, now_ms):
        yield from ((Idle(row.session_id, row.subject, row.idle_ms), bool(row.runs)) for row in rows)
        last = rows[-1].session_id
