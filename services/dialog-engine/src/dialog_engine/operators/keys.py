"""`dialog-engine keys`: creates, lists and revokes the API keys of API_KEYS_FILE."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from callstream_runtime.settings_sources import Subject, read_settings
from dialog_engine.identity.api_keys import ApiKey, add_key, list_keys, revoke_key
from dialog_engine.identity.principal import OPERATOR, USER

NOT_FOUND, WRONG = 1, 2


class _Settings(Subject):
    """The one setting that the command needs."""

    api_keys_file: Path | None = None


def run(words: Sequence[str]) -> int:
    """Run the command. Returns its exit code: 0; 1 when there is no such key; 2 for a wrong argument or file."""
    options = _parser().parse_args(words)
    path: Path | None = options.file or read_settings(_Settings).api_keys_file
    if path is None:
        sys.stderr.write("API_KEYS_FILE is not set: set it, or name the file with --file\n")
        return WRONG
    try:
        match options.command:
            case "add":
                expires = options.days and datetime.now(UTC).replace(microsecond=0) + timedelta(days=options.days)
                entry, key = add_key(path, options.subject, options.role or [USER], expires)
                sys.stderr.write(f"{_line(entry)}\nThis is the key. It is shown this once and stored as a hash only:\n")
                sys.stdout.write(f"{key}\n")
            case "revoke":
                if (entry := revoke_key(path, options.id)) is None:
                    sys.stderr.write(f"{path} has no key {options.id}\n")
                    return NOT_FOUND
                sys.stdout.write(f"revoked: {_line(entry)}\n")
            case _:
                sys.stdout.writelines(f"{_line(entry)}\n" for entry in list_keys(path))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return WRONG
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dialog-engine keys", description=__doc__)
    parser.add_argument("--file", type=Path, help="the file of keys; otherwise API_KEYS_FILE")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="create a key, and print it once")
    add.add_argument("subject", help="whose sessions the key opens; a subject may have several keys")
    add.add_argument(
        "--role",
        action="append",
        help=f"{USER} (the default) may chat, {OPERATOR} may read /metrics, others are for RIGHTS_FILE; repeatable",
    )
    add.add_argument("--days", type=_days, help="how long the key is valid; otherwise until it is revoked")
    commands.add_parser("list", help="show the keys, without their secrets")
    revoke = commands.add_parser("revoke", help="remove a key; running engines notice within a second")
    revoke.add_argument("id", help="as `list` shows it")
    return parser


def _days(text: str) -> float:
    days = float(text)
    if not 0 < days <= 36_500:
        raise argparse.ArgumentTypeError("must be more than 0 and at most 36500")
    return days


def _line(entry: ApiKey) -> str:
    expires = f"expires {entry.expires:%Y-%m-%dT%H:%MZ}" if entry.expires else "does not expire"
    if entry.expires and entry.expires <= datetime.now(UTC):
        expires = f"expired {entry.expires:%Y-%m-%dT%H:%MZ}"
    return f"{entry.id}  {entry.subject}  {','.join(entry.roles)}  {expires}"
