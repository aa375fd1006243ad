"""Compares the answers of several engines about the same sessions."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import httpx2

from tests.chaos.invariants import Finding

AT_ONCE = 8


class Asked(Protocol):
    """An engine as a client reaches it."""

    http: httpx2.Client


def disagreement(engines: Sequence[Asked], session_id: str) -> str:
    """The differing answers about the session, or its turns that were not answered; "" when there is nothing wrong."""
    try:
        answers: list[Any] = [engine.http.get(f"/v1/sessions/{session_id}/messages").json() for engine in engines]
    except (httpx2.HTTPError, ValueError) as error:
        return f"nothing of session {session_id}: {type(error).__name__} {error}"
    answered = answers[0].get("turns") and all(turn["status"] == "done" for turn in answers[0]["turns"])
    return "" if answered and all(each == answers[0] for each in answers) else f"{answers}"


def disagreements(ports: Iterable[int], session_ids: Sequence[str]) -> list[Finding]:
    """The sessions about which the engines at these ports differ. Their turns may have ended in any way."""
    clients = [httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) for port in ports]

    def look(session_id: str) -> Finding | None:
        answers = [client.get(f"/v1/sessions/{session_id}/messages") for client in clients]
        if all(answer.status_code == 200 and answer.json() == answers[0].json() for answer in answers):
            return None
        return Finding("alike", f"engines tell a session differently: {[a.text for a in answers]}"[:2000], session_id)

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [finding for finding in pool.map(look, session_ids) if finding]
    finally:
        for client in clients:
            client.close()
