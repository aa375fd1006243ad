"""The worker's settings: every bad value is named, and no secret is shown."""

from pathlib import Path

import pytest

from plugins_mcp.config import Settings, load_settings
from plugins_mcp.errors import ServersFileError, SettingsError
from plugins_mcp.mcp import Http
from plugins_mcp.wiring import configured_servers
from tests.marks import promise

SECRET = "s3cr3t-of-mine"


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No `.env`, and none of the worker's variables."""
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


def test_without_any_server_it_says_which_settings_give_one() -> None:
    with pytest.raises(SettingsError, match="MCP_CONFIG or MCP_SERVER_ENDPOINT must be set"):
        load_settings()


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


def test_an_endpoint_that_is_no_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SERVER_ENDPOINT", "localhost:9/mcp")
    with pytest.raises(SettingsError, match=r"^MCP_SERVER_ENDPOINT: url must be an address"):
        configured_servers(load_settings())


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


def test_a_file_that_is_not_there_is_named_with_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MCP_CONFIG", str(tmp_path / "none.json"))
    with pytest.raises(ServersFileError, match=r"none\.json.*correct MCP_CONFIG"):
        configured_servers(load_settings())
