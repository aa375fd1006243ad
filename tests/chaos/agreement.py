"""Compares the answers of several engines about the same sessions."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.chaos.followed import engines_at
from tests.chaos.invariants import Finding

AT_ONCE = 8


def disagreements(ports: Iterable[int], session_ids: Sequence[str]) -> list[Finding]:
    """The sessions about which the engines at these ports differ. Their turns may have ended in any way."""
    with engines_at(ports) as clients, ThreadPoolExecutor(AT_ONCE) as pool:

        def look(session_id: str) -> Finding | None:
            answers = [client.get(f"/v1/sessions/{session_id}/messages") for client in clients]
            if all(answer.status_code == 200 and answer.json() == answers[0].json() for answer in answers):
                return None
            told = f"engines tell a session differently: {[a.text for a in answers]}"
            return Finding("alike", told[:2000], session_id)

        return [finding for finding in pool.map(look, session_ids) if finding]
