"""The worker's settings: every bad value is named, and no secret is shown."""

from pathlib import Path

import pytest

from plugins_mcp.config import load_settings
from plugins_mcp.errors import ServersFileError, SettingsError
from plugins_mcp.mcp import Http
from plugins_mcp.wiring import configured_servers
from tests.marks import promise

pytestmark = pytest.mark.usefixtures("nothing_is_set")
SECRET = "s3cr3t-of-mine"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "MCP_CONFIG or MCP_SERVER_ENDPOINT must be set"),
        ({"MCP_SERVER_ENDPOINT": "localhost:9/mcp"}, r"^MCP_SERVER_ENDPOINT: url must be an address"),
        ({"MCP_CONFIG": "none.json"}, r"none\.json.*correct MCP_CONFIG"),
    ],
)
def test_a_server_that_is_missing_is_named_with_its_setting(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], words: str
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((SettingsError, ServersFileError), match=words):
        configured_servers(load_settings())


@promise("a bad setting is named at the start")
def test_all_bad_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SERVER_ENDPOINT", "http://127.0.0.1:9/mcp")
    monkeypatch.setenv("HEALTH_PORT", "x")
    monkeypatch.setenv("LOG_LEVEL", "x")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["LOG_LEVEL", "HEALTH_PORT"]


def test_the_key_is_sent_to_the_one_server_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SERVER_ENDPOINT", "http://127.0.0.1:9/mcp")
    monkeypatch.setenv("MCP_API_KEY", SECRET)
    settings = load_settings()
    (server,) = configured_servers(settings).servers
    assert isinstance(server.transport, Http)
    assert server.transport.headers == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(settings) + str(settings) + repr(server)


def test_a_file_and_an_endpoint_go_together_unless_they_share_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mcp.json"
    monkeypatch.setenv("MCP_SERVER_ENDPOINT", "http://127.0.0.1:9/mcp")
    monkeypatch.setenv("MCP_CONFIG", str(file))
    file.write_text('{"mcpServers": {"a": {"command": "a"}}}')
    assert [server.name for server in configured_servers(load_settings()).servers] == ["a", "default"]
    file.write_text('{"mcpServers": {"default": {"command": "a"}}}')
    with pytest.raises(SettingsError, match="both define a server 'default': rename one"):
        configured_servers(load_settings())
