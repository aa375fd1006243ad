"""What a server offers, as it is published; and what is left out."""

from typing import Any

import msgspec
import pytest
from mcp import types as sdk

from plugins_contract.catalog import ApprovalPolicy, Quarantined, ToolEntry
from plugins_contract.messages import ExecutionClass
from plugins_mcp.mcp.listing import (
    MAX_ARGUMENTS,
    MAX_CATALOG_BYTES,
    MAX_DESCRIPTION_CHARS,
    MAX_INSTRUCTIONS_CHARS,
    MAX_NAME_CHARS,
    MAX_OTHERS,
    MAX_RESOURCES,
    MAX_RESOURCES_BYTES,
    Listing,
    remove_malformed_tools,
    to_catalog,
)
from plugins_mcp.mcp.policies import approval, execution_class
from plugins_mcp.mcp.spec import ServerOptions, ServerSpec, ToolOptions
from plugins_mcp.mcp.transport_options import Http
from tests.marks import promise

OBJECT: dict[str, Any] = {"type": "object"}


def spec(**options: Any) -> ServerSpec:
    return ServerSpec("srv", Http("http://h"), ServerOptions(**options))


def tool(name: str = "t", schema: dict[str, Any] = OBJECT, **fields: Any) -> sdk.Tool:
    return sdk.Tool.model_validate({"name": name, "inputSchema": schema, **fields})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"p": schema}}
    return schema


def test_a_tool_is_published_with_all_that_the_engine_needs() -> None:
    listed = tool(
        "read file", description="Reads", annotations={"title": "Read", "readOnlyHint": True, "openWorldHint": False}
    )
    options = {"trust": True, "approval": ALWAYS, "timeout_ms": 9, "tools": {"read file": ToolOptions(timeout_ms=5)}}
    entry = to_catalog(spec(**options), Listing(tools=(listed,))).tools[0]
    assert entry == ToolEntry(
        name=entry.name, server="srv", tool="read file", title="Read", description="Reads", input_schema=OBJECT,
        annotations={"title": "Read", "readOnlyHint": True, "openWorldHint": False},
        execution_class=ExecutionClass.REPEATABLE, timeout_ms=5, approval=ALWAYS,
    )  # fmt: skip
    assert entry.name.startswith("srv__read_file_")


READ_ONLY = sdk.ToolAnnotations(read_only_hint=True)
IDEMPOTENT = sdk.ToolAnnotations(idempotent_hint=True)
WRITES = sdk.ToolAnnotations(read_only_hint=False, destructive_hint=True)
SAID_REPEATABLE = {"t": ToolOptions(execution_class=ExecutionClass.REPEATABLE)}
SAID_ONCE = {"t": ToolOptions(execution_class=ExecutionClass.ONCE)}


@promise("the execution class comes from a trusted server's annotations only")
@pytest.mark.parametrize(
    ("options", "annotations", "expected"),
    [
        ({"trust": False}, READ_ONLY, ExecutionClass.ONCE),
        ({"trust": True}, READ_ONLY, ExecutionClass.REPEATABLE),
        ({"trust": True}, IDEMPOTENT, ExecutionClass.REPEATABLE),
        ({"trust": True}, WRITES, ExecutionClass.ONCE),
        ({"trust": True}, sdk.ToolAnnotations(), ExecutionClass.ONCE),
        ({"trust": True}, None, ExecutionClass.ONCE),
        ({"trust": False, "tools": SAID_REPEATABLE}, None, ExecutionClass.REPEATABLE),
        ({"trust": True, "tools": SAID_ONCE}, READ_ONLY, ExecutionClass.ONCE),
    ],
)
def test_a_tool_may_run_twice_only_by_a_trusted_word(
    options: dict[str, Any], annotations: sdk.ToolAnnotations | None, expected: ExecutionClass
) -> None:
    assert execution_class(ServerOptions(**options), "t", annotations) is expected


NEVER, DESTRUCTIVE, ALWAYS = ApprovalPolicy
HARMLESS = sdk.ToolAnnotations(destructive_hint=False)
SILENT = sdk.ToolAnnotations(title="says nothing")


@promise("destructive tools wait for approval, durably")
@pytest.mark.parametrize(
    ("options", "annotations", "expected"),
    [
        ({}, WRITES, DESTRUCTIVE),
        ({}, SILENT, NEVER),
        ({}, None, NEVER),
        ({"trust": True}, WRITES, NEVER),
        ({"approval": NEVER}, WRITES, NEVER),
        ({"approval": ALWAYS, "trust": True}, READ_ONLY, ALWAYS),
        ({"approval": DESTRUCTIVE, "trust": True}, WRITES, DESTRUCTIVE),
        ({"approval": DESTRUCTIVE, "trust": True}, HARMLESS, NEVER),
        ({"approval": DESTRUCTIVE, "trust": True}, READ_ONLY, NEVER),
        # MCP: a tool that says nothing may be destructive, however idempotent it is.
        ({"approval": DESTRUCTIVE, "trust": True}, None, DESTRUCTIVE),
        ({"approval": DESTRUCTIVE, "trust": True}, SILENT, DESTRUCTIVE),
        ({"approval": DESTRUCTIVE, "trust": True}, IDEMPOTENT, DESTRUCTIVE),
        # A server that is not trusted cannot talk its way past the question.
        ({"approval": DESTRUCTIVE}, READ_ONLY, DESTRUCTIVE),
        ({"approval": DESTRUCTIVE}, HARMLESS, DESTRUCTIVE),
        # What is said about the tool counts more than what is said about its server.
        ({"approval": DESTRUCTIVE, "tools": {"t": ToolOptions(approval=NEVER)}}, WRITES, NEVER),
        ({"approval": ALWAYS, "tools": {"t": ToolOptions(approval=NEVER)}}, WRITES, NEVER),
        ({"tools": {"t": ToolOptions(approval=ALWAYS)}}, READ_ONLY, ALWAYS),
        ({"trust": True, "tools": {"t": ToolOptions(approval=DESTRUCTIVE)}}, READ_ONLY, NEVER),
        ({"tools": {"other": ToolOptions(approval=ALWAYS)}}, SILENT, NEVER),
    ],
)
def test_which_tools_need_approval(
    options: dict[str, Any], annotations: sdk.ToolAnnotations | None, expected: ApprovalPolicy
) -> None:
    assert approval(ServerOptions(**options), "t", annotations) is expected


@promise("a tool with an invalid schema is left out, and the reason reported")
@promise("one bad tool schema never fails a request")
@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (tool(""), "no name"),
        (tool(schema={"type": "string"}), "not of type object"),
        (tool(schema={}), "not of type object"),
        (tool(schema={"type": "object", "properties": {"a": {"type": "strin"}}}), "not valid JSON Schema"),
        (tool(schema={"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}), "'http://x/y'"),
        (tool(schema={"type": "object", "anyOf": [{"$ref": "other.json"}]}), "'other.json'"),
        (tool(schema={"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}), "'#/$defs/none'"),
        (tool(schema={"type": "object", "anyOf": [{"$ref": "#/anyOf/1"}]}), "'#/anyOf/1'"),
        (tool(schema={"type": "object", "anyOf": [{"$ref": "#/anyOf/one"}]}), "'#/anyOf/one'"),
        (tool(schema={"type": "object", "description": "ü" * 20_000}), "too large: 40"),
        (tool(schema=nested(50)), "nested more than"),
        (tool(execution={"taskSupport": "required"}), "MCP task"),
    ],
)
def test_a_tool_that_would_spoil_a_request_is_quarantined(listed: sdk.Tool, reason: str) -> None:
    catalog = to_catalog(spec(), Listing(tools=(listed, tool("good"))))
    assert [entry.tool for entry in catalog.tools] == ["good"]
    assert reason in catalog.quarantined[0].reason


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"$ref": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"type": "string"}}},
        {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
        {"type": "object", "properties": {"a": {"anyOf": [OBJECT]}, "b": {"$ref": "#/properties/a/anyOf/0"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/%24defs/a"}}, "$defs": {"a": {"type": "string"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False},
        nested(20),
    ],
)
def test_unusual_but_sound_schemas_are_left_alone(schema: dict[str, Any]) -> None:
    catalog = to_catalog(spec(), Listing(tools=(tool(schema=schema),)))
    assert catalog.quarantined == ()
    assert catalog.tools[0].input_schema == schema


def test_a_name_that_is_listed_twice_means_neither() -> None:
    catalog = to_catalog(spec(), Listing(tools=(tool("a"), tool("b"), tool("a"))))
    assert [entry.tool for entry in catalog.tools] == ["b"]
    assert catalog.quarantined == (Quarantined(tool="a", reason="listed more than once"),)


def test_the_order_of_a_listing_does_not_change_the_catalog() -> None:
    one, two = tool("one"), tool("two")
    catalogs = [to_catalog(spec(), Listing(tools=tools)) for tools in ((one, two), (two, one))]
    assert catalogs[0].encoded() == catalogs[1].encoded()


@pytest.mark.parametrize("result", [{}, {"tools": None}, {"content": []}])
def test_other_results_are_left_alone(result: dict[str, Any]) -> None:
    before = dict(result)
    assert remove_malformed_tools(result) == []
    assert result == before


# --- A server that lists more than anyone can use ---


def test_tools_beyond_the_size_of_a_catalog_are_left_out_and_named() -> None:
    schema, fitting = OBJECT | {"description": "d" * 30_000}, MAX_CATALOG_BYTES // 30_000
    catalog = to_catalog(spec(), Listing(tools=tuple(tool(f"t{n}", schema) for n in range(fitting + 10))))
    assert fitting - 10 < len(catalog.tools) < fitting
    assert len(catalog.tools) + len(catalog.quarantined) == fitting + 10
    assert catalog.quarantined[0].reason == f"the tools exceed {MAX_CATALOG_BYTES} bytes in all"


def test_everything_else_in_a_catalog_has_a_limit() -> None:
    many, long = range(5_000), "x" * 1_000_000
    arguments = [sdk.PromptArgument(name=long)] * (MAX_ARGUMENTS + 1)
    catalog = to_catalog(
        spec(),
        Listing(
            info=sdk.Implementation(name=long, version=long),
            instructions=long,
            tools=tuple(tool(f"{n}{'t' * 1_000}", {"type": "array"}) for n in many),
            resources=(
                sdk.Resource(uri=f"x://{long}", name="left out"),
                *(sdk.Resource(uri=f"x://{n}", name=long, description=long, mime_type=long) for n in many),
            ),
            prompts=tuple(sdk.Prompt(name=long, description=long, arguments=arguments) for _ in many),
        ),
    )
    assert (len(catalog.quarantined), len(catalog.prompts)) == (MAX_OTHERS,) * 2
    assert MAX_RESOURCES_BYTES - 10_000 < len(msgspec.json.encode(catalog.resources)) <= MAX_RESOURCES_BYTES + 5_000
    assert catalog.left_out == 5_001 - len(catalog.resources) + 5_000 - MAX_OTHERS
    assert len(catalog.instructions or "") == MAX_INSTRUCTIONS_CHARS
    assert catalog.title == catalog.version == "x" * (MAX_NAME_CHARS - 1) + "…"
    assert {each.name for each in catalog.resources} == {catalog.title}
    assert [*catalog.prompts[0].arguments] == [catalog.title] * MAX_ARGUMENTS
    short = msgspec.structs.replace(catalog, prompts=())
    assert len(msgspec.json.encode(short)) < 2 * MAX_OTHERS * (MAX_DESCRIPTION_CHARS + 300)


def test_ten_thousand_resources_are_listed_and_their_templates_first() -> None:
    plain = tuple(sdk.Resource(uri=f"x://{n}", name="n") for n in range(MAX_RESOURCES + 5))
    templates = (sdk.ResourceTemplate(uri_template="x://{n}", name="t"),)
    catalog = to_catalog(spec(), Listing(resources=plain, templates=templates, unread=7))
    assert (len(catalog.resources), catalog.resources[0].template) == (MAX_RESOURCES, True)
    assert catalog.left_out == 6 + 7


def test_a_list_is_kept_for_as_long_as_its_server_says_and_not_for_too_short() -> None:
    for ttl_ms, seconds in ((None, 300), (0, 300), (60_000, 60), (1, 5), (10**9, 300)):
        assert Listing(ttl_ms=ttl_ms).kept_for(300) == seconds
