"""Clients of foreign protocols, each in one conversation: what they ask, what they get, and how their streams end."""

import json
import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import httpx2
import openai
from openai import DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from plugins_contract.messages import new_id
from tests.chaos.model import Order
from tests.support.ui_messages import Page

READ_SECONDS = 60
RETRIES = 20
"""Of the SDK, which waits up to 8 s between two of them: a machine that starts everything again is slow."""
MODEL = "openai:demo-scripted"
PAUSE_SECONDS = 0.3
BROKEN = (httpx2.HTTPError, openai.APIError)
"""Errors of the protocol and of the connection: in the middle of a stream the SDK passes on those of its own client."""

Ports = Callable[[], Sequence[int]]


class End(StrEnum):
    """How a client saw its stream end."""

    WHOLE = "whole"
    """With the protocol's end."""
    BROKEN = "broken"
    """With the protocol's error, or the connection broke."""
    ORDERLY = "orderly, without the protocol's end"


@dataclass
class Asked:
    """One question, and what the client has of its answer."""

    order: Order
    turn_id: str = ""
    session_id: str = ""
    text: str = ""
    end: End = End.ORDERLY
    streams: int = 1
    """How many connections the answer took."""
    continued: int = 0
    """How many requests went on with it."""
    read_on: int = 0
    """How many connections brought what came behind the last event of another one."""
    compared: int = 0
    """How many of its streams were compared with what another reader gets."""
    mistakes: list[str] = field(default_factory=list[str])
    """What came twice, or not at all."""


class ForeignClient(Protocol):
    """A conversation of a client."""

    gap: str
    """What stands between the texts before and after tool calls."""

    def ask(self, order: Order) -> Asked:
        """Ask, at any engine, and read to the end of the answer or of the connection."""
        ...


def _base(ports: Ports) -> str:
    return f"http://127.0.0.1:{random.choice(ports())}"


@contextmanager
def sdk(ports: Ports) -> Generator[OpenAI]:
    """The package `openai`, at one of the engines."""
    with (
        DefaultHttpxClient(trust_env=False, timeout=READ_SECONDS) as http,
        OpenAI(base_url=f"{_base(ports)}/v1", api_key="any", max_retries=RETRIES, http_client=http) as client,
    ):
        yield client


@dataclass
class ChatCompletions:
    """The package `openai`: it repeats what was not begun, and sends the conversation again as it has seen it."""

    ports: Ports
    name: str = field(default_factory=new_id)
    gap: str = "\n\n"
    history: list[ChatCompletionMessageParam] = field(default_factory=list[ChatCompletionMessageParam])

    def ask(self, order: Order) -> Asked:
        asked = Asked(order)
        self.history.append({"role": "user", "content": str(order)})
        headers = {"X-Session-Id": self.name, "X-On-Disconnect": "continue"}
        with sdk(self.ports) as client:
            try:
                stream = client.chat.completions.create(
                    model=MODEL, messages=self.history, stream=True, extra_headers=headers
                )
                asked.turn_id = stream.response.headers["x-turn-id"]
                asked.session_id = stream.response.headers["x-session-id"]
                for chunk in stream:
                    asked.text += chunk.choices[0].delta.content or ""
                    if chunk.choices[0].finish_reason:
                        asked.end = End.WHOLE
            except openai.APIStatusError:
                raise  # refused again and again
            except BROKEN:
                asked.end = End.BROKEN
        self.history.append({"role": "assistant", "content": asked.text})
        return asked


@dataclass
class AiSdk:
    """A page with the AI SDK: it reads a running answer again from its beginning whenever its connection breaks."""

    ports: Ports
    name: str = field(default_factory=new_id)
    gap: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def ask(self, order: Order) -> Asked:
        asked, key = Asked(order), new_id()
        question = {"id": key, "role": "user", "parts": [{"type": "text", "text": str(order)}]}
        self.messages.append(question)
        body = {"id": self.name, "trigger": "submit-message", "messages": self.messages}
        headers = {"Idempotency-Key": key}
        until = time.monotonic() + READ_SECONDS
        with httpx2.Client(trust_env=False, timeout=READ_SECONDS) as http:
            while not asked.turn_id and time.monotonic() < until:
                self._read(http, asked, "POST", "", json=body, headers=headers)
            while asked.end is End.BROKEN and time.monotonic() < until:
                asked.streams += 1
                if not self._read(http, asked, "GET", f"/{self.name}/stream"):
                    break
        answer = [{"type": "text", "text": asked.text}]
        self.messages.append({"id": asked.turn_id or new_id(), "role": "assistant", "parts": answer})
        return asked

    def _read(self, http: httpx2.Client, asked: Asked, method: str, path: str, **options: Any) -> bool:
        """Read one stream into the message. Whether there may be more to read: False where no turn runs."""
        page, rest = Page(), b""
        try:
            with http.stream(method, f"{_base(self.ports)}/v1/ai-sdk/chat{path}?v=7", **options) as answer:
                if answer.status_code == 204:
                    return False
                if answer.status_code != 200:
                    time.sleep(PAUSE_SECONDS)
                    return True
                asked.turn_id, asked.session_id = answer.headers["x-turn-id"], answer.headers["x-session-id"]
                for data in answer.iter_raw():
                    whole, ends, rest = (rest + data).rpartition(b"\n\n")
                    if said := _without_comments(whole + ends):
                        page.read(said)
            asked.end = End.WHOLE if page.ended else End.ORDERLY
        except BROKEN:
            asked.end = End.BROKEN
            time.sleep(PAUSE_SECONDS)
        asked.text = page.text
        return True


def _without_comments(data: bytes) -> bytes:
    return b"".join(each + b"\n\n" for each in data.split(b"\n\n") if each.startswith(b"data: "))


def shown_to_the_model(asked: Asked) -> list[tuple[str, str]]:
    """What the model was shown, as an order that `recalls` says it: roles and texts. Empty where the answer was cut."""
    with suppress(ValueError):
        return [(role, text) for role, text, _ in json.loads(asked.text)]
    return []
