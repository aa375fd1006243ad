"""The package `openai`."""

import json
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.e2e.clients.driver import answers, asked, elsewhere, run, said, tools


def ask(question: str, url: str, cut: bool) -> dict[str, Any]:
    said.append({"role": "user", "content": question})
    return answer(url, cut)


def answer(url: str, cut: bool) -> dict[str, Any]:
    client = OpenAI(base_url=f"{url}/v1", api_key=asked["key"], default_headers=asked["headers"])
    wanted: dict[str, Any] = {"model": asked["model"], "messages": said, "stream_options": {"include_usage": True}}
    if own := tools():
        wanted["tools"] = own
    chunks: list[ChatCompletionChunk] = []
    with client.chat.completions.create(stream=True, **wanted) as stream:
        for chunk in stream:
            chunks.append(chunk)
            if cut and text_of(chunks):
                return {"text": text_of(chunks)}
    calls = [call for chunk in chunks for each in chunk.choices for call in each.delta.tool_calls or ()]
    made = [call.model_dump(include={"id", "type", "function"}) for call in calls]
    said.append({"role": "assistant", "content": text_of(chunks)} | ({"tool_calls": made} if made else {}))
    if not made:
        return {
            "text": text_of(chunks),
            "tokens": sum(chunk.usage.completion_tokens for chunk in chunks if chunk.usage),
        }
    for call in made:
        result = run(json.loads(call["function"]["arguments"]))
        said.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return answer(elsewhere, False)


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(each.delta.content or "" for chunk in chunks for each in chunk.choices)


answers(ask)
