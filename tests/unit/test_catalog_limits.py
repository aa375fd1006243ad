"""A server that lists more than anyone can use: its catalog has a limited size, and says what was left out."""

import msgspec
import pytest
from mcp import types as sdk

from plugins_mcp.mcp import listing
from plugins_mcp.mcp.listing import (
    MAX_ARGUMENTS,
    MAX_DESCRIPTION_CHARS,
    MAX_INSTRUCTIONS_CHARS,
    MAX_NAME_CHARS,
    MAX_OTHERS,
    Listing,
    to_catalog,
)
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.transport_options import Stdio

SPEC = ServerSpec("s", Stdio("x"))


def tool(name: str, schema_type: str = "object") -> sdk.Tool:
    return sdk.Tool(name=name, description="d" * 1_000, input_schema={"type": schema_type})


def test_tools_beyond_the_size_of_a_catalog_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_CATALOG_BYTES", 10_000)
    catalog = to_catalog(SPEC, Listing(tools=tuple(tool(f"t{n}") for n in range(100))))
    assert 5 < len(catalog.tools) < 10
    assert len(catalog.tools) + len(catalog.quarantined) == 100
    assert catalog.quarantined[0].reason == "the tools exceed 10000 bytes in all"


def test_everything_else_in_a_catalog_has_a_limit() -> None:
    many, long = range(5_000), "x" * 1_000_000
    arguments = [sdk.PromptArgument(name=long)] * (MAX_ARGUMENTS + 1)
    catalog = to_catalog(
        SPEC,
        Listing(
            info=sdk.Implementation(name=long, version=long),
            instructions=long,
            tools=tuple(tool(f"{n}{'t' * 1_000}", "array") for n in many),
            resources=(
                sdk.Resource(uri=f"x://{long}", name="left out"),
                *(sdk.Resource(uri=f"x://{n}", name=long, description=long, mime_type=long) for n in many),
            ),
            prompts=tuple(sdk.Prompt(name=long, description=long, arguments=arguments) for _ in many),
        ),
    )
    assert (len(catalog.quarantined), len(catalog.resources), len(catalog.prompts)) == (MAX_OTHERS,) * 3
    assert len(catalog.instructions or "") == MAX_INSTRUCTIONS_CHARS
    assert catalog.title == catalog.version == "x" * (MAX_NAME_CHARS - 1) + "…"
    assert {each.name for each in catalog.resources} == {catalog.title}
    assert [*catalog.prompts[0].arguments] == [catalog.title] * MAX_ARGUMENTS
    short = msgspec.structs.replace(catalog, prompts=())
    assert len(msgspec.json.encode(short)) < 2 * MAX_OTHERS * (MAX_DESCRIPTION_CHARS + 300)
