"""Servers that are known to keep state, by the package that their command starts: the mode where an entry has none.

So are those that are known to ask people in the middle of calls: over stdio a question names no call.
"""

import re

from plugins_contract.sessions import SessionMode
from plugins_mcp.mcp.transport_options import Stdio, Transport

KEEP_STATE = {
    "@playwright/mcp": SessionMode.CONVERSATION,
    "@executeautomation/playwright-mcp-server": SessionMode.CONVERSATION,
    "chrome-devtools-mcp": SessionMode.CONVERSATION,
    "@modelcontextprotocol/server-puppeteer": SessionMode.CONVERSATION,
    "puppeteer-mcp-server": SessionMode.CONVERSATION,
    "@modelcontextprotocol/server-sequential-thinking": SessionMode.CONVERSATION,
    "@modelcontextprotocol/server-everything": SessionMode.CONVERSATION,
    "@modelcontextprotocol/server-memory": SessionMode.SUBJECT,
    "mcp-server-memory": SessionMode.SUBJECT,
}
"""Packages of npm and PyPI."""
_VERSION = re.compile(r"(?<=.)(@|==).*")


def mode_of(transport: Transport) -> SessionMode:
    """The mode of a server whose entry names none."""
    if not isinstance(transport, Stdio):
        return SessionMode.SHARED
    for word in (transport.command, *transport.args):
        # `npx -y @playwright/mcp@0.0.40`, `node node_modules/@playwright/mcp/cli.js`, `/opt/venv/bin/mcp-server-memory`
        _, installed, path = word.rpartition("node_modules/")
        if installed:
            parts = path.split("/")
            name = "/".join(parts[: 2 if path.startswith("@") else 1])
        else:
            name = _VERSION.sub("", word if word.startswith("@") else word.rsplit("/", 1)[-1])
        if name in KEEP_STATE:
            return KEEP_STATE[name]
    return SessionMode.SHARED
