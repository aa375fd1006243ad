"""The package `langchain-openai`. What it is asked is JSON on the standard input, and each answer is a line of JSON."""

import json
import sys
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    said: list[tuple[str, str]] = []
    for place, question in enumerate(asked["questions"]):
        said.append(("user", question))
        try:
            chat = chat_at(asked["urls"][place % len(asked["urls"])], asked)
            answer = ask(chat, said, cut=place == asked["cut"])
        except Exception as error:  # noqa: BLE001 -- what the client shows is the answer
            answer = {"error": str(error)}
        said.append(("assistant", answer.get("text", "")))
        print(json.dumps(answer), flush=True)


def chat_at(url: str, asked: dict[str, Any]) -> ChatOpenAI:
    key, model, headers = SecretStr(asked["key"]), asked["model"], asked["headers"]
    return ChatOpenAI(base_url=f"{url}/v1", api_key=key, model=model, default_headers=headers, stream_usage=True)


def ask(chat: ChatOpenAI, said: list[tuple[str, str]], *, cut: bool) -> dict[str, Any]:
    whole = AIMessageChunk(content="")
    for chunk in chat.stream(said):
        whole = whole + chunk
        if cut and whole.text:
            break
    return {"text": str(whole.text), "tokens": (whole.usage_metadata or {}).get("output_tokens", 0)}


main()
