"""What the services import before they are ready: a start costs a second, most of it imports; and what the contract may
import at all."""

import ast
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

NOT_AT_START = {
    "plugins_mcp.main, plugins_mcp.wiring": (
        "aiohttp",  # with the first stateless HTTP server
        "fastapi",
        "httpcore2",  # with the first HTTP server
        "truststore",
        "uvloop",
    ),
    "dialog_engine.main, dialog_engine.wiring.engine": (
        "anthropic",  # with the first request to such a model
        "boto3",
        "botocore",
        "google.auth",
        "mcp",
        "openai",  # with the first request to such a model
        "psycopg",  # with DATABASE_URL only
    ),
}
"""Heavy libraries that each service imports later, or never."""


@pytest.mark.parametrize("service", NOT_AT_START)
def test_a_service_starts_without_the_libraries_that_it_may_never_need(service: str) -> None:
    script = f"import {service}, sys; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert len(loaded) > 300
    assert [name for name in NOT_AT_START[service] if name in loaded] == []


def test_the_contract_imports_msgspec_and_redis_and_no_other_library() -> None:
    imported = set[str]()
    for file in (ROOT / "services/plugins-contract/src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import():
                    imported |= {each.name.partition(".")[0] for each in node.names}
                case ast.ImportFrom():
                    imported.add((node.module or "").partition(".")[0])
                case _:
                    pass
    assert imported - sys.stdlib_module_names == {"plugins_contract", "msgspec", "redis"}
