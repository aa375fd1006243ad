"""What `make run` starts, for which environment, and the ports that servers of this machine get."""

import re
import socket
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from callstream_runtime.settings import parse_redis_url
from deploy.local.plan import Program, RunError, make_plan
from deploy.local.ports import free_port
from tests.marks import promise

VALKEY = Path("/somewhere/valkey-server")


def ports() -> Callable[[], int]:
    numbers = count(40_001)
    return lambda: next(numbers)


def planned(**environment: str) -> dict[str, Program]:
    programs, _ = make_plan(environment, free_port=ports(), valkey=lambda: VALKEY)
    return {program.name: program for program in programs}


def shown(**environment: str) -> str:
    return make_plan(environment, free_port=ports(), valkey=lambda: VALKEY)[1]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"WORKERS": "0"}, "WORKERS"),
        ({"WORKERS": "many"}, "WORKERS"),
        ({"WORKERS": "33"}, "WORKERS"),
        ({"ENGINES": "-1"}, "ENGINES"),
    ],
)
def test_a_wrong_number_of_processes_is_refused_by_its_name(settings: dict[str, str], named: str) -> None:
    with pytest.raises(RunError, match=named):
        planned(**settings)


def test_a_folder_with_a_long_path_gets_a_short_path_for_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.chdir(deep)
    socket = Path(parse_redis_url(planned()["plugins-mcp"].env["REDIS_URL"]).socket_path)
    assert len(bytes(socket)) <= 103, "macOS accepts no more"
    assert socket.parent.stat().st_mode & 0o077 == 0
    socket.parent.rmdir()


def test_only_the_embedded_server_gets_a_key_by_itself() -> None:
    """With a Redis of the user's there may be producers without the key."""
    for name in ("dialog-engine", "plugins-mcp"):
        assert planned()[name].env["REQUEST_KEYS_FILE"] == ".data/request.keys"
        assert planned(REQUEST_KEYS_FILE="/mine")[name].env["REQUEST_KEYS_FILE"] == "/mine"
        assert "REQUEST_KEYS_FILE" not in planned(REDIS_URL="redis://elsewhere/0")[name].env


def test_each_program_inherits_its_own_variables_and_no_other(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"a": {"url": "https://x/${GIT_TOKEN}", "headers": {"k": "${env:OTHER:-x}"}}}}')
    programs = planned(MCP_CONFIG=str(config))
    inherit = {
        "PATH": {"valkey", "demo-model", "plugins-mcp", "dialog-engine"},
        "https_proxy": {"plugins-mcp", "dialog-engine"},
        "REDIS_PASSWORD": {"plugins-mcp", "dialog-engine"},
        "OPENAI_API_KEY": {"dialog-engine"},
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": {"dialog-engine"},
        "DATABASE_URL": {"dialog-engine"},
        "API_KEYS": {"dialog-engine"},
        "API_KEYS_FILE": {"dialog-engine"},
        "OIDC_ISSUER": {"dialog-engine"},
        "MCP_API_KEY": {"plugins-mcp"},
        "GIT_TOKEN": {"plugins-mcp"},
        "OTHER": {"plugins-mcp"},
        "UNKNOWN_TOKEN": set[str](),
    }
    assert {
        name: {each for each, program in programs.items() if re.fullmatch(program.inherits, name)} for name in inherit
    } == inherit


@promise("the demo model is labelled as scripted wherever a person meets it")
def test_the_demo_model_is_called_a_script() -> None:
    settings = planned()["dialog-engine"].env

    assert settings["MODEL_SCRIPTED"] == "true"
    assert settings["MODEL_LABEL"] == "Scripted demo model"
    assert settings["OPENAI_MODEL"] == "demo-scripted"
    assert settings["OPENAI_BASE_URL"].endswith("/v1")


@promise("PORT, REDIS_URL, OPENAI_*, MCP_CONFIG and MCP_SERVER_ENDPOINT are honoured")
@pytest.mark.parametrize(
    ("setting", "left_out"),
    [
        ({"REDIS_URL": "redis://elsewhere:6379/0"}, "valkey"),
        ({"OPENAI_API_KEY": "sk-1"}, "demo-model"),
        ({"OPENAI_BASE_URL": "http://elsewhere/v1"}, "demo-model"),
        ({"ANTHROPIC_API_KEY": "sk-1"}, "demo-model"),
        ({"ANTHROPIC_BASE_URL": "http://elsewhere"}, "demo-model"),
        ({"MCP_CONFIG": "mine.json"}, "demo-mcp-server"),
        ({"MCP_SERVER_ENDPOINT": "http://elsewhere/mcp"}, "demo-mcp-server"),
    ],
)
def test_what_the_user_brings_is_not_started(setting: dict[str, str], left_out: str) -> None:
    plan = planned(**setting)

    assert planned().keys() - plan.keys() == {left_out}
    # and the services find it in the environment, which the plan leaves alone
    assert not any(name in program.env for program in plan.values() for name in setting)


def test_an_empty_variable_counts_as_unset() -> None:
    assert planned(REDIS_URL="", OPENAI_API_KEY="", MCP_CONFIG="", PORT="") == planned()


@promise("PORT, REDIS_URL, OPENAI_*, MCP_CONFIG and MCP_SERVER_ENDPOINT are honoured")
@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ({"PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"HOST": "localhost"}, "http://localhost:8000"),
        ({"HOST": "::1"}, "http://[::1]:8000"),
        ({"HOST": "0.0.0.0"}, "http://127.0.0.1:8000"),
    ],
)
def test_host_and_port_are_the_users(setting: dict[str, str], url: str) -> None:
    engine = planned(**setting)["dialog-engine"]

    assert engine.ready_url == f"{url}/readyz"
    assert engine.env.items() >= setting.items()
    assert f"open {url} and ask" in shown(**setting)


@promise("make run answers those who have a key or a token where the environment names a way to sign in")
@pytest.mark.parametrize("way", ["API_KEYS", "API_KEYS_FILE", "OIDC_ISSUER"])
def test_the_example_has_a_key_where_the_environment_names_a_way_to_sign_in(way: str) -> None:
    assert "Bearer $KEY" in shown(**{way: "x"})
    assert "Bearer" not in shown()


def test_passwords_are_not_shown() -> None:
    assert "hunter2" not in shown(
        REDIS_URL="redis://:hunter2@elsewhere:6379/0", OPENAI_BASE_URL="http://me:hunter2@x/v1"
    )


# --- Ports: free, not given twice, and of no use for outgoing connections ---


OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_is_given_once() -> None:
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == len(given)


@pytest.mark.skipif(not OUTGOING.exists(), reason="not Linux: no file says which ports are for outgoing connections")
def test_no_outgoing_connection_can_take_it_before_its_server_starts() -> None:
    first, last = map(int, OUTGOING.read_text().split())
    if first < 32_768:
        pytest.skip("this machine gives lower ports than usual to outgoing connections")
    assert not any(first <= free_port() <= last for _ in range(200))


def test_a_port_that_is_taken_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        taken = server.getsockname()[1]
        monkeypatch.setenv("LOCAL_PORTS", f"{taken}-{taken + 20}")
        assert all(taken < free_port() <= taken + 20 for _ in range(42))
