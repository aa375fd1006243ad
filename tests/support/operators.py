"""A person at a shell who runs a command of the worker's program, in this process."""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from plugins_mcp.main import main

OURS = ("REDIS_", "MCP_", "OPENAI_", "API_KEYS")
"""The settings of the services begin with these."""


def environment(url: str) -> dict[str, str]:
    """Nothing of ours but where Redis is: no MCP server is configured."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)} | {"REDIS_URL": url}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal(io.StringIO):
    """A terminal at which this text is typed."""

    def isatty(self) -> bool:
        return True


@dataclass
class Operator:
    """A person at a shell in `folder`, with nothing in the environment but where Redis is."""

    url: str
    folder: Path

    async def run(self, *words: str, stdin: io.StringIO | None = None, **env: str) -> Answer:
        """Run `plugins-mcp` with these words, by default with no terminal at its standard input."""
        answer = await anyio.to_thread.run_sync(self._main, words, stdin or io.StringIO(), env)
        assert "Traceback" not in answer.err
        return answer

    def _main(self, words: tuple[str, ...], stdin: io.StringIO, env: dict[str, str]) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name in [name for name in os.environ if name.startswith(OURS)]:
                patch.delenv(name)
            for name, value in {"REDIS_URL": self.url, "COLUMNS": "100", **env}.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            patch.setattr(sys, "stdin", stdin)
            patch.setattr(sys, "argv", ["plugins-mcp", *words])
            with pytest.raises(SystemExit) as ended:
                main()
        code = ended.value.code
        assert isinstance(code, int)
        return Answer(code, out.getvalue(), err.getvalue())
