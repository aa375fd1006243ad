"""The command line of `plugins-mcp`, parsed into a closed union of commands."""

import argparse
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plugins_contract.messages import MAX_TIMEOUT_MS

DESCRIPTION = "Runs tool calls from events.plugins against MCP servers. Without a command: the worker itself."
EXIT_CODES = """exit codes:
  0  done
  1  nothing found, or something was not done (the output says why)
  2  a wrong argument or setting
  3  Redis cannot be reached"""
DEFAULT_TIMEOUT_SECONDS = 60.0
LONGEST_SECONDS = 100 * 365 * 86400.0
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Filters:
    """Selects dead letters. Empty strings do not restrict; at most one of the `since` fields is set."""

    server: str = ""
    tool: str = ""
    subject: str = ""
    reason: str = ""
    since_seconds: float | None = None
    since_ms: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """No command: run the worker."""


@dataclass(frozen=True, slots=True)
class List:
    """List dead letters, one line each."""

    filters: Filters
    json: bool


@dataclass(frozen=True, slots=True)
class Show:
    """Show one dead letter in full."""

    name: str
    json: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters with these names, or all that match the filters; and how to confirm."""

    names: tuple[str, ...]
    filters: Filters
    yes: bool
    dry_run: bool
    json: bool


@dataclass(frozen=True, slots=True)
class Requeue:
    """Run the calls again."""

    selection: Selection
    timeout_seconds: float
    may_have_run: bool
    approve: bool
    wait: bool


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete the letters."""

    selection: Selection


@dataclass(frozen=True, slots=True)
class DiffTools:
    """Show the tools of trusted servers that are held back, and what changed. An empty server means all."""

    server: str
    json: bool


@dataclass(frozen=True, slots=True)
class AcceptTools:
    """Accept held tools of a server as they are now; without names, all of them."""

    server: str
    tools: tuple[str, ...]
    yes: bool


@dataclass(frozen=True, slots=True)
class ShowServers:
    """Show the MCP servers of all running workers."""

    json: bool


@dataclass(frozen=True, slots=True)
class Check:
    """Connect to every server of a servers file, without Redis and without a worker."""

    file: Path


Command = Work | List | Show | Requeue | Discard | DiffTools | AcceptTools | ShowServers | Check


def read_arguments(argv: list[str]) -> Command:
    """The command in `argv`. A wrong one is reported and exits the process with 2; `--help` exits with 0."""
    parser = _parser()
    found = parser.parse_args(argv)
    if found.group is None:
        return Work()
    if found.group == "servers":
        return ShowServers(found.json)
    if found.group == "check":
        return Check(found.file)
    command: str = found.command
    if found.group == "tools":
        if command == "diff":
            return DiffTools(found.server, found.json)
        return AcceptTools(found.server, tuple(found.tool), found.yes)
    match command:
        case "list":
            return List(_filters(found), found.json)
        case "show":
            return Show(found.id, found.json)
        case _:
            if bool(found.id) == found.all:
                parser.error(f"dead {command}: give the ids of letters, or --all{', but not both' * found.all}")
            filters = _filters(found)
            if found.id and filters != Filters():
                parser.error(f"dead {command}: filters go with --all, not with ids")
            selection = Selection(tuple(found.id), filters, found.yes, found.dry_run, found.json)
            if command == "discard":
                return Discard(selection)
            return Requeue(selection, found.timeout, found.may_have_run, found.approve, found.wait)


def _parser() -> argparse.ArgumentParser:
    # No abbreviations: `--a` must not be taken for `--all`.
    parser = argparse.ArgumentParser(prog="plugins-mcp", description=DESCRIPTION, allow_abbrev=False)
    groups = parser.add_subparsers(title="commands", dest="group", metavar="dead|tools|servers|check")
    _add_tools(groups)
    _add_servers(groups)
    dead = groups.add_parser(
        "dead",
        help="dead letters: tool calls that could not be handled",
        description="Dead letters: tool calls that could not be handled. Their callers were answered with an error.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = dead.add_subparsers(title="commands", dest="command", metavar="list|show|requeue|discard", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.add_argument("--json", action="store_true", help="one JSON object per line, for scripts")
        return made

    _add_filters(add("list", "List dead letters, the newest first."), limit=50)
    show = add("show", "Show everything about one dead letter.")
    show.add_argument("id", metavar="ID", help="its id, or the correlation id of its call")
    requeue = add("requeue", "Run the calls again, each as a new call. The result is not added to a conversation.")
    requeue.add_argument(
        "--timeout",
        type=_timeout,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="TIME",
        help="time for the new call, such as 90s or 5m (default: 60s)",
    )
    requeue.add_argument(
        "--may-have-run",
        action="store_true",
        help="also calls that must run only once and were started: they may take effect a second time",
    )
    requeue.add_argument(
        "--approve", action="store_true", help="approve them: tools that need a person's approval run with it only"
    )
    requeue.add_argument("--wait", action="store_true", help="wait for the results and print them")
    for command in (requeue, add("discard", "Delete dead letters for good.")):
        command.add_argument("id", nargs="*", metavar="ID", help="ids, or correlation ids of their calls")
        command.add_argument("--all", action="store_true", help="all letters that match the filters")
        command.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        command.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
        _add_filters(command, limit=None)
    return parser


def _add_tools(groups: Any) -> None:  # argparse has no public name for its type
    text = "The tools of trusted servers that are held back, because they are new or changed."
    tools = groups.add_parser("tools", help=text, description=text, allow_abbrev=False)
    commands = tools.add_subparsers(title="commands", dest="command", metavar="diff|accept", required=True)
    diff = commands.add_parser("diff", help="Show what is held back, and what changed.", allow_abbrev=False)
    diff.add_argument("server", nargs="?", default="", metavar="SERVER", help="one server (default: all)")
    diff.add_argument("--json", action="store_true", help="one JSON object per line, for scripts")
    accept = commands.add_parser("accept", help="Accept held tools as they are shown.", allow_abbrev=False)
    accept.add_argument("server", metavar="SERVER")
    accept.add_argument("tool", nargs="*", metavar="TOOL", help="names on the server (default: all that are held)")
    accept.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _add_servers(groups: Any) -> None:
    text = "The MCP servers of all running workers: state, error, next try, sessions, child processes."
    servers = groups.add_parser("servers", help=text, description=text, allow_abbrev=False)
    servers.add_argument("--json", action="store_true", help="one JSON object per line, for scripts")
    text = "Connect to every server of a servers file and list its tools. Needs no Redis. Ends with 1 when one fails."
    check = groups.add_parser("check", help=text, description=text, allow_abbrev=False)
    check.add_argument("file", type=Path, metavar="FILE", help="a servers file, such as mcp.json")


def _add_filters(parser: argparse.ArgumentParser, *, limit: int | None) -> None:
    group = parser.add_argument_group("filters")
    group.add_argument("--server", default="", help="the MCP server")
    group.add_argument("--tool", default="", help="the tool, as the server or as the model calls it")
    group.add_argument("--subject", default="", help="the user on whose behalf the call was made")
    group.add_argument("--reason", default="", help="a part of the reason; upper and lower case are the same")
    group.add_argument(
        "--since",
        type=_since,
        default=(None, None),
        metavar="TIME",
        help="30m, 12h, 7d ago, or since 2026-01-31T12:00:00Z",
    )
    text = f"the newest N at most (default: {limit})" if limit else "the newest N at most"
    group.add_argument("--limit", type=_count, default=limit, metavar="N", help=text)


def _filters(found: argparse.Namespace) -> Filters:
    seconds, at_ms = found.since
    return Filters(found.server, found.tool, found.subject, found.reason, seconds, at_ms, found.limit)


def _since(text: str) -> tuple[float | None, int | None]:
    if re.fullmatch(r"[\d.]+[a-z]", text):
        return _duration(text), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: use 30m, 12h, 7d or 2026-01-31T12:00:00Z") from None
    return None, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: use 90s, 5m, 12h or 7d")
    return min(float(found[1]) * UNITS[found[2] or "s"], LONGEST_SECONDS)


def _timeout(text: str) -> float:
    seconds = _duration(text)
    if seconds * 1000 > MAX_TIMEOUT_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is too long: at most 30d")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
