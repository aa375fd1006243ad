"""Bodies that the facades accept. The OpenAPI document cannot say them: they are as the documents of others say."""

from typing import Any

from hypothesis import strategies as st

MODEL = "openai:gpt-4.1-mini"
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=20)
NUMBERS = st.floats(0, 1)
OBJECT: st.SearchStrategy[dict[str, Any]] = st.just({"type": "object"})
FORMAT = st.sampled_from([{"type": "text"}, {"type": "json_object"}])
MESSAGES = st.tuples(
    st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": WORDS})),
    st.fixed_dictionaries({"role": st.just("user"), "content": WORDS}),
).map(lambda said: [*said[0], said[1]])
TOOL: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.just("pick"), "parameters": OBJECT})}
)
COMMON: dict[Any, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "store": st.booleans(),
    "user": WORDS,
    "unknown": st.integers(),
}
CHAT = st.fixed_dictionaries(
    {"model": st.just(MODEL), "messages": MESSAGES},
    optional={
        **COMMON,
        "max_tokens": st.integers(1, 1_000),
        "stop": st.one_of(WORDS, st.lists(WORDS, max_size=4)),
        "seed": st.integers(0, 1 << 31),
        "response_format": FORMAT,
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
        "tools": st.lists(TOOL, max_size=1),
        "tool_choice": st.sampled_from(["auto", "none"]),
    },
)
METADATA = st.dictionaries(WORDS, WORDS, max_size=2)
RESPONSE = st.fixed_dictionaries(
    {"model": st.just(MODEL), "input": st.one_of(WORDS, MESSAGES)},
    optional={
        **COMMON,
        "background": st.booleans(),
        "instructions": WORDS,
        "max_output_tokens": st.integers(16, 1_000),
        "text": st.fixed_dictionaries({"format": FORMAT}),
        "metadata": METADATA,
    },
)
ITEM = {"type": "message", "role": "user", "content": "Hi"}
_KEPT: dict[Any, st.SearchStrategy[Any]] = {"type": st.just("message"), "id": WORDS, "status": st.just("completed")}
ITEMS: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "developer"]), "content": WORDS},
        optional=_KEPT,
    ),
    min_size=1,
    max_size=3,
)
UI_MESSAGE = st.fixed_dictionaries(
    {
        "id": WORDS,
        "role": st.just("user"),
        "parts": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}), min_size=1, max_size=2),
    }
)
UI_CHAT = st.fixed_dictionaries(
    {"id": WORDS, "messages": st.lists(UI_MESSAGE, min_size=1, max_size=1), "trigger": st.just("submit-message")},
    optional={"model": st.just(MODEL), "clientTools": st.just([{"name": "pick", "inputSchema": {"type": "object"}}])},
)
ACCEPTED: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "POST /v1/chat/completions": CHAT,
    "POST /v1/responses": RESPONSE,
    "POST /v1/conversations": st.fixed_dictionaries({}, optional={"items": ITEMS, "metadata": METADATA}),
    "POST /v1/conversations/{conversation_id}": st.fixed_dictionaries({"metadata": METADATA}),
    "POST /v1/conversations/{conversation_id}/items": st.fixed_dictionaries({"items": ITEMS}),
    "POST /v1/ai-sdk/chat": UI_CHAT,
}
"""By the label of an operation."""
