"""The package `langchain-openai`."""

from typing import Any, cast

from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.e2e.clients.driver import answers, asked, elsewhere, run, said, tools


def ask(question: str, url: str, cut: bool) -> dict[str, Any]:
    said.append(HumanMessage(question))
    return answer(url, cut)


def answer(url: str, cut: bool) -> dict[str, Any]:
    key, model, headers = SecretStr(asked["key"]), asked["model"], asked["headers"]
    model = ChatOpenAI(base_url=f"{url}/v1", api_key=key, model=model, default_headers=headers, stream_usage=True)
    own = tools()
    whole = AIMessageChunk(content="")
    for chunk in (model.bind_tools(own) if own else model).stream(said):
        whole = cast("AIMessageChunk", whole + chunk)
        if cut and whole.text:
            break
    said.append(whole)
    if whole.tool_calls:
        said.extend(ToolMessage(run(call["args"]), tool_call_id=call["id"]) for call in whole.tool_calls)
        return answer(elsewhere, False)
    return {"text": str(whole.text), "tokens": (whole.usage_metadata or {}).get("output_tokens", 0)}


answers(ask)
