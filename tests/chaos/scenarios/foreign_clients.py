"""Clients of other protocols ask while engines, workers and Redis are killed: what they have is what is stored.

A client whose stream ended with the protocol's end has the whole answer, any other one a beginning of it; the next
request goes on from what is stored, whatever the client has of it; and tools run once, however often a client repeats.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from threading import Event
from typing import Any

import httpx2

from tests.chaos.followed import history
from tests.chaos.foreign_clients import AiSdk, Asked, ChatCompletions, End, ForeignClient, Ports, shown_to_the_model
from tests.chaos.load import Work
from tests.chaos.model import Order, calls_of
from tests.chaos.report import Report, Size
from tests.chaos.responses_client import Responses
from tests.chaos.scenarios.redis_killed import WRITES_BEFORE_REPLIES
from tests.chaos.trial import Trial, engines_on, trial

CLIENTS = (ChatCompletions, AiSdk, Responses)
WORDS, WORD_MS = 60, 20
QUESTIONS = 8
"""In one conversation; the last one asks what the model was shown of the others."""
AWAY_SECONDS = 0.5
MORE_FAULTS = 8
"""How many more there may be until each kind of client was struck."""


@dataclass(frozen=True, slots=True)
class Form:
    """So many clients of each protocol, which ask for so many seconds, and a fault each few seconds."""

    clients: int
    seconds: float
    fault_seconds: float


FORMS = {Size.SHORT: Form(4, 15, 2), Size.FULL: Form(12, 300, 6)}


@dataclass(frozen=True)
class Conversation:
    client: ForeignClient
    asked: list[Asked] = field(default_factory=list[Asked])

    @property
    def protocol(self) -> str:
        return type(self.client).__name__


def run(size: Size, folder: Path) -> Report:
    form = FORMS[size]
    options: dict[str, Any] = engines_on("postgres") | {"redis_options": WRITES_BEFORE_REPLIES, "quick": True}
    with trial(folder, Work(), calls=0, workers=3, **options) as under_fire:
        ends_at = time.monotonic() + form.seconds
        conversations, finished = list[Conversation](), Event()

        def ask(kind: Callable[[Ports], ForeignClient]) -> None:
            while not finished.is_set():
                conversations.append(new := Conversation(kind(lambda: [*under_fire.cluster.running_engines])))
                _converse(new)

        with ThreadPoolExecutor(len(CLIENTS) * form.clients) as pool:
            asking = pool.map(ask, CLIENTS * form.clients)
            try:
                struck = _break(under_fire, ends_at, form.fault_seconds, lambda: all(_ends(conversations).values()))
            finally:
                finished.set()
            list(asking)
        under_fire.judge()
        under_fire.check_agreement()
        under_fire.must_have_struck(struck | _ends(conversations))
        for each in conversations:
            for what, where in _differences(under_fire, each):
                under_fire.expect(False, each.protocol, what, where)
        return under_fire.report("foreign_clients")


def _converse(conversation: Conversation) -> None:
    for number in range(QUESTIONS):
        tag = f"{time.monotonic_ns():x}"
        work = Order(tag, [calls_of(tag, 2, "both", 50, 800)], words=WORDS, word_ms=WORD_MS)
        order = work if number < QUESTIONS - 1 else Order(tag, recalls=True)
        conversation.asked.append(conversation.client.ask(order))


def _break(under_fire: Trial, ends_at: float, every: float, all_seen: Callable[[], bool]) -> dict[str, int]:
    """Kill an engine, a worker and Redis in turn, each once at least; how often each. There are more faults than fit
    into the time where not all that is to be struck was seen."""
    cluster, struck, more = under_fire.cluster, Counter[str](), iter(range(MORE_FAULTS))

    def kill_a_worker() -> None:
        under_fire.kill_worker(next(iter(cluster.workers)))
        cluster.start_worker(wait=False)

    def kill_redis() -> None:
        under_fire.kill_redis()
        time.sleep(AWAY_SECONDS)
        cluster.redis.start()

    faults = {
        "engines killed": lambda: cluster.restart_engine(signal.SIGKILL),
        "engines ended in good order": lambda: cluster.restart_engine(signal.SIGTERM),
        "workers killed": kill_a_worker,
        "Redis killed": kill_redis,
    }
    for name in cycle(faults):
        time.sleep(every)
        is_over = time.monotonic() >= ends_at and len(struck) == len(faults)
        if is_over and (all_seen() or next(more, None) is None):
            break
        faults[name]()
        struck[name] += 1
    return {name: struck[name] for name in faults}


def _ends(conversations: Sequence[Conversation]) -> dict[str, int]:
    """How the streams of each protocol ended, as the clients saw it, and how they went on."""
    answers = [(each.protocol, asked) for each in conversations for asked in each.asked]
    seen = Counter((protocol, asked.end) for protocol, asked in answers)
    again = sum(asked.streams > 1 for protocol, asked in answers if protocol == AiSdk.__name__)
    return {
        "conversations": len(conversations),
        **{f"{kind.__name__}, whole": seen[kind.__name__, End.WHOLE] for kind in CLIENTS},
        "ChatCompletions, broken": seen["ChatCompletions", End.BROKEN],
        "answers of AiSdk read again": again,
        "responses read on behind an event": sum(asked.read_on for _, asked in answers),
        "responses compared": sum(asked.compared for _, asked in answers),
        "requests with approvals": sum(asked.continued for _, asked in answers),
    }


def _differences(under_fire: Trial, conversation: Conversation) -> Iterator[tuple[str, str]]:
    """What a client has otherwise than it is stored, and where: a turn."""
    sessions = {asked.session_id for asked in conversation.asked if asked.session_id}
    if len(sessions) != 1:
        yield f"a conversation is in {len(sessions)} sessions", str(sessions)
        return
    stored = _stored(under_fire, sessions.pop())
    for asked in conversation.asked:
        whole = conversation.client.gap.join(text for role, text in stored.get(asked.turn_id, ()) if role != "user")
        yield from ((mistake, asked.turn_id) for mistake in asked.mistakes)
        if not asked.turn_id:
            yield "a question was refused again and again", asked.order.tag
        elif asked.end is End.ORDERLY:
            yield f"a stream ended {asked.end}", asked.turn_id
        elif not (asked.text == whole if asked.end is End.WHOLE else whole.startswith(asked.text)):
            yield f"the client has {asked.text!r}, stored is {whole!r}", asked.turn_id
    *earlier, _ = stored.values()
    before = [message for messages in earlier for message in messages]
    shown = [(role, text) for role, text in shown_to_the_model(conversation.asked[-1]) if role in ("user", "assistant")]
    if shown and shown[:-1] != before:
        yield f"the model was shown {shown}, stored is {before}", conversation.asked[-1].turn_id


def _stored(under_fire: Trial, session_id: str) -> dict[str, list[tuple[str, str]]]:
    """Roles and texts of the messages of a session, by turn, in their order."""
    found: dict[str, list[tuple[str, str]]] = {}
    with httpx2.Client(base_url=under_fire.cluster.url, timeout=60) as http:
        for each in sorted(history(http, session_id), key=lambda each: (each["turnId"], each["messageId"])):
            found.setdefault(each["turnId"], []).append((each["role"], each["content"]))
    return found
