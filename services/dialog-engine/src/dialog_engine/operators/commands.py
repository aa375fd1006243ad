"""The command line of `dialog-engine`: without a command the engine itself."""

import argparse
import asyncio
import os
import re
import sys
import time
from datetime import UTC, date, datetime
from pathlib import Path

from callstream_runtime.settings import digest_of_subject
from dialog_engine.chat.audit import AuditAction
from dialog_engine.config import load
from dialog_engine.config.store import OperatorSettings, StoreSettings
from dialog_engine.consumption.subjects import COUNTED, OPEN, first
from dialog_engine.consumption.usage import Wanted
from dialog_engine.errors import ConfigurationError, EngineError
from dialog_engine.operators import audit, audit_chain, backup, encrypt, keys, retention, subjects, usage
from dialog_engine.operators.split_media import split_media
from dialog_engine.operators.trace import trace
from dialog_engine.personal_data.retention import Retention
from plugins_contract.encryption import DecryptionError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NOT_DONE = 1
WRONG = 2
"""Exit code for a wrong argument or setting, and for a store that cannot be read."""


def run(argv: list[str]) -> int:
    """Run the command in `argv`; returns its exit code. An error is one line on standard error."""
    if argv[:1] == ["keys"]:
        return keys.run(argv[1:])
    found = read_arguments(argv)
    try:
        match found.command:
            case "audit":
                return _audit(found)
            case "subjects":
                return _subjects(found)
            case "usage":
                return _usage(found)
            case "trace":
                return trace(load(OperatorSettings), found.id, found.log)
            case "split-media":
                return asyncio.run(_split_media())
            case "backup":
                backup.back_up(load(StoreSettings), sys.stdout.buffer)
                return 0
            case "restore":
                return _marked(asyncio.run(backup.restore(load(StoreSettings), sys.stdin.buffer)))
            case "restored":
                return _marked(asyncio.run(backup.restored(load(StoreSettings))))
            case "retention":
                return _retention()
            case "move":
                return asyncio.run(_move(found))
            case _:
                return asyncio.run(_encrypt(found))
    except (EngineError, DecryptionError) as error:
        sys.stderr.write(f"dialog-engine {found.command}: {error}\n")
        return WRONG
    except BrokenPipeError:
        # The reader closed the pipe. Python must not flush to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE


def _audit(found: argparse.Namespace) -> int:
    settings = load(StoreSettings)
    with audit.opened(settings) as query:
        if found.what == "head":
            sys.stdout.write(audit_chain.named(audit_chain.head_of(query)) + "\n")
            return 0
        if found.what == "verify":
            verified = audit_chain.verify(query, settings.cipher, found.head)
            sys.stdout.writelines(f"{line}\n" for line in verified.lines())
            return NOT_DONE if verified.problems else 0
        wanted = audit.AuditFilter(found.since, found.subject, found.tool, found.action, found.id)
        for line in audit.show(audit.events(query, wanted), as_lines_of_json=found.json):
            sys.stdout.write(line + "\n")
    return 0


def _subjects(found: argparse.Namespace) -> int:
    settings = load(OperatorSettings)
    if found.of:
        if settings.request_keys_file is None:
            raise ConfigurationError("REQUEST_KEYS_FILE: is not set: its first key makes the digests")
        sys.stdout.write(digest_of_subject(settings.request_keys, found.of) + "\n")
        return 0
    report = subjects.report(settings)
    lines = (
        (subjects.as_json(use, settings) for use in first(report.uses, found.limit, found.by))
        if found.json
        else subjects.as_text(report, found.limit, found.by)
    )
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _usage(found: argparse.Namespace) -> int:
    settings = load(StoreSettings)
    prices = usage.prices_of(settings)
    names = {"subject": found.subject, "model": found.model, "tool": found.tool}
    try:
        wanted = Wanted.between(found.first, found.last, datetime.now(UTC).date(), **names)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    show = {"csv": usage.as_csv, "json": usage.as_json, "text": usage.as_text}[found.form]
    with audit.opened(settings) as query:
        sys.stdout.writelines(show(usage.pages(query, wanted), prices))
    return 0


async def _encrypt(found: argparse.Namespace) -> int:
    settings = load(StoreSettings)
    cipher = settings.cipher
    if not cipher.active:
        raise ConfigurationError("ENCRYPTION_KEYS_FILE: is not set: it names the file with the keys")
    async with encrypt.open_store(settings) as database:
        done = await encrypt.encrypt(database, cipher, remove=found.remove)
    for table, count in sorted(done.written.items()):
        sys.stdout.write(f"{table}: {count} values {'decrypted' if found.remove else 'encrypted'}\n")
    if done.still_needed:
        keys = ", ".join(sorted(done.still_needed))
        sys.stdout.write(f"Still needed by calls without an answer: {keys}. Run this again when they have ended.\n")
        return NOT_DONE
    kept = "no key" if found.remove else f"the key {cipher.first}"
    sys.stdout.write(f"The store needs {kept} from now on. What Redis still holds expires after 24 hours.\n")
    return 0


async def _split_media() -> int:
    settings = load(StoreSettings)
    async with encrypt.open_store(settings) as database:
        count = await split_media(database, settings.cipher)
    sys.stdout.write(f"The media of {count} results were moved into rows of their own.\n")
    return 0


def _marked(calls: int) -> int:
    sys.stdout.write(
        f"The store is restored. {calls} calls had no answer at the moment of the backup: those that may run only once"
        " end as unknown.\n"
    )
    return 0


def _retention() -> int:
    settings = load(StoreSettings)
    with audit.opened(settings) as query:
        lines = retention.would_be_erased(query, Retention.of(settings.retention_rules), round(time.time() * 1000))
        sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


async def _move(found: argparse.Namespace) -> int:
    from dialog_engine.operators import move  # noqa: PLC0415 -- psycopg is slow to import

    settings = load(StoreSettings)
    if found.cancel:
        await move.cancel(settings)
        sys.stdout.write("The file stays. Delete what was copied before the PostgreSQL is used for another move.\n")
        return 0
    moved = await move.move(settings, lambda line: print(line, file=sys.stderr))  # noqa: T201 -- its progress
    sys.stdout.writelines(f"{name}: {content}\n" for name, content in moved.content.items())
    sys.stdout.writelines(f"{line}\n" for line in (*moved.audit, *moved.problems))
    if not moved.problems:
        sys.stdout.write(
            "The move is complete: the PostgreSQL has what the file has. Start engines with DATABASE_URL.\n"
        )
    return NOT_DONE if moved.problems else 0


def read_arguments(argv: list[str]) -> argparse.Namespace:
    """The command in `argv`. A wrong one is reported and exits the process with 2; `--help` exits with 0."""
    parser = argparse.ArgumentParser(
        prog="dialog-engine", description="Streams chat turns and drives their tool calls. Without a command: serve."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("keys", help="create, list and revoke API keys", add_help=False)
    shown = commands.add_parser("audit", help="show who did what, oldest first, or verify it")
    shown.add_argument("what", nargs="?", default="show", choices=["show", "verify", "head"], help="show by default")
    shown.add_argument("--head", default="", help="for verify: an earlier head of the chain, as head printed it")
    shown.add_argument("--since", type=since, default=0, help="such as 2h, 7d or 2026-11-23T08:00:00Z")
    shown.add_argument("--subject", default="", help="only events of this subject")
    shown.add_argument("--tool", default="", help="only calls of this tool, or of this server's tools")
    shown.add_argument("--action", default="", choices=["", *AuditAction], help="only events of this kind")
    shown.add_argument("--id", default="", help="only events of this session, turn or call")
    shown.add_argument("--json", action="store_true", help="one JSON object per line, with every field")
    used = commands.add_parser("subjects", help="who uses most, now and over the last hour, at all engines")
    used.add_argument("--by", default="", choices=["", *OPEN, *COUNTED], help="sort by this (default: any share)")
    used.add_argument("--limit", type=positive, default=10, help="how many (default: 10)")
    used.add_argument("--json", action="store_true", help="one JSON object per line")
    used.add_argument("--of", default="", metavar="NAME", help="print the digest that stands for this subject in logs")
    counted = commands.add_parser("usage", help="what was used by day, subject, model and tool, and what it costs")
    counted.add_argument(
        "--from", dest="first", type=day, help="such as 2026-11-01, UTC (default: 29 days before --to)"
    )
    counted.add_argument("--to", dest="last", type=day, help="such as 2026-11-30 (default: today)")
    counted.add_argument("--subject", default="", help="only of this subject")
    counted.add_argument("--model", default="", help="only of this model, such as openai:gpt-5")
    counted.add_argument("--tool", default="", help="only of this tool, or of this server's tools")
    forms = counted.add_mutually_exclusive_group()
    forms.add_argument(
        "--csv", dest="form", action="store_const", const="csv", default="text", help="for a spreadsheet"
    )
    forms.add_argument("--json", dest="form", action="store_const", const="json", help="one JSON object per line")
    traced = commands.add_parser("trace", help="the history of a call, a turn, a session or a trace")
    traced.add_argument("id", metavar="ID", help="of a call, a turn, a session or a trace")
    text = (
        "a log of any service, human or json, with the prefixes of Compose or kubectl or without; - is standard input"
    )
    traced.add_argument("--log", type=Path, action="append", default=[], metavar="FILE", help=f"{text}; repeatable")
    commands.add_parser("backup", help="write a copy of the SQLite file to the standard output, also while engines run")
    commands.add_parser("restore", help="replace the SQLite file by the backup on the standard input")
    commands.add_parser("restored", help="run this after pg_restore, before an engine starts")
    commands.add_parser("split-media", help="move images in results of earlier releases to rows of their own")
    commands.add_parser("retention", help="show what RETENTION_DAYS and RETENTION_BY_SUBJECT would erase now")
    moved = commands.add_parser("move", help="move the SQLite file of OUTBOX_PATH into the PostgreSQL of DATABASE_URL")
    moved.add_argument("--cancel", action="store_true", help="give up a move that has not ended, and keep the file")
    encrypted = commands.add_parser("encrypt", help="encrypt the whole store with the first key, to retire the others")
    encrypted.add_argument("--remove", action="store_true", help="decrypt the store instead")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """A number of 1 or more. Raises argparse.ArgumentTypeError when it is none."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def day(text: str) -> date:
    """A day. Raises argparse.ArgumentTypeError when it is none."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day such as 2026-11-23") from None


def since(text: str) -> int:
    """A time in Unix milliseconds: how long ago, or a date and time (UTC unless it names an offset).

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    if ago := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return max(0, round(time.time() * 1000) - int(ago[1]) * UNITS[ago[2]] * 1000)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a duration such as 2h or 7d, nor a date") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
