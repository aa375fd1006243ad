"""The file of API keys, how a running engine notices its changes, and how often an address may fail."""

import json
import logging
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pydantic import SecretStr

from callstream_runtime.watched_file import WARNING_SECONDS, WatchedFile
from dialog_engine.chat.waiting_messages import HeldReason
from dialog_engine.errors import TooManyAttemptsError, UnauthenticatedError
from dialog_engine.identity.api_keys import ApiKey, ApiKeys, add_key, digest_of, list_keys, revoke_key
from dialog_engine.identity.authenticator import Authenticator
from dialog_engine.identity.failed_attempts import MOST_ADDRESSES, FailedAttempts
from dialog_engine.model import Turn
from dialog_engine.operators import keys
from dialog_engine.operators.commands import run as run_command
from plugins_contract.rights import Rights
from tests.marks import promise
from tests.support.hand_clock import HandClock


@promise("API keys are stored as hashes, expire, and are revoked without a restart")
def test_the_file_holds_hashes_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "keys.json"
    entry, key = add_key(path, "ann", ["user"], None)
    assert key not in path.read_text()
    assert entry.sha256 == digest_of(key).hex()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["keys.json"]


def test_a_subject_has_several_keys_and_each_is_revoked_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    (first, first_key), (_, second_key) = (add_key(path, "ann", ["user"], None) for _ in range(2))
    assert revoke_key(path, first.id) == first
    assert revoke_key(path, first.id) is None
    keys = ApiKeys({}, path)
    assert keys.find(digest_of(first_key)) is None
    assert (found := keys.find(digest_of(second_key)))
    assert found.subject == "ann"


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    threads = [Thread(target=add_key, args=(path, f"subject{n}", ["user"], None)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.subject for key in list_keys(path)} == {f"subject{n}" for n in range(20)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a file of keys"),
        ('{"keys": [{"id": "a", "sha256": "abc", "subject": "ann"}]}', "sha256"),
        ('{"keys": [{"id": "a", "sha256": "%s", "subject": ""}]}' % ("0" * 64), "subject"),
        ('{"keys": [{"id": "a", "sha256": "%s", "subject": "ann", "role": "user"}]}' % ("0" * 64), "role"),
        (
            '{"keys": [{"id": "a", "sha256": "%s", "subject": "a", "expires": "2030-01-01T00:00"}]}' % ("0" * 64),
            "expires",
        ),
        (json.dumps({"keys": [{"id": "a", "sha256": "0" * 64, "subject": name} for name in "ab"]}), "the same id"),
        (json.dumps({"keys": [{"id": name, "sha256": "0" * 64, "subject": name} for name in "ab"]}), "the same sha256"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=why) as error:
        ApiKeys({}, path)
    assert str(path) in str(error.value)


@promise("API keys are stored as hashes, expire, and are revoked without a restart")
def test_a_changed_file_is_read_again_and_a_bad_one_is_closed_after_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "file", HandClock()

    def replace(text: str) -> None:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(path)

    replace("1")
    file = WatchedFile(path, int, 0, now=clock)
    replace("22")
    assert file.content == 1, "it is checked once in a second"
    clock.now += 1
    assert file.content == 22
    with caplog.at_level(logging.ERROR):
        for change, text in (("not a number", "file: "), ("", "file: "), (None, "cannot be read")):
            caplog.clear()
            path.unlink() if change is None else replace(change)
            clock.now += 1
            assert [file.content for _ in range(3)] == [22, 22, 22]
            [line] = caplog.messages
            assert text in line
            assert "stays in use" in line
    clock.now += WARNING_SECONDS - 3
    assert file.content == 22
    clock.now += 1
    caplog.clear()
    assert [file.content for _ in range(3)] == [0, 0, 0], "a deleted or broken file kept its keys"
    assert len(caplog.messages) == 1
    replace("4444")
    clock.now += 1
    assert file.content == 4444


REPLACED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "not a regular file"),  # was opened, which waits for a writer: the engine stood still
    "a device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a folder": (lambda path: path.mkdir(), "not a regular file"),
    "2 MB": (lambda path: path.write_bytes(bytes(2_000_001)), "more than 2,000,000 bytes"),
    "nested deeply": (lambda path: path.write_bytes(b"a = " + b"[" * 5_000), "nested too deeply"),  # kept its rights
}


@pytest.mark.parametrize("kind", REPLACED)
def test_what_is_no_file_of_rights_is_closed_too(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    path, clock, nothing, (replace, why) = tmp_path / "file", HandClock(), Rights(b""), REPLACED[kind]
    path.touch()
    rights = WatchedFile(path, Rights, nothing, now=clock)
    path.unlink()
    replace(path)
    clock.now += 1
    assert rights.content is not nothing
    assert why in caplog.text
    clock.now += WARNING_SECONDS
    assert rights.content is nothing


def test_a_key_that_replaces_another_under_its_id_is_another_credential(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    entry, _ = add_key(path, "ann", ["user"], datetime.now(UTC) - timedelta(days=1))
    credential = entry.principal().credential
    assert ApiKeys({}, path).of(credential), "it has expired, and was not revoked"
    path.write_text(path.read_text().replace(entry.sha256, "0" * 64))
    assert ApiKeys({}, path).of(credential) is None


# --- The command ---


def test_the_command_prints_a_key_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("API_KEYS_FILE", str(path))
    assert run_command(["keys", "add", "ann", "--role", "user", "--role", "operator", "--days", "30"]) == 0
    out, err = capsys.readouterr()
    [entry] = list_keys(path)
    assert out.strip().startswith("callstream_")
    assert digest_of(out.strip()).hex() == entry.sha256
    assert "shown this once" in err
    assert entry.roles == ("user", "operator")
    assert entry.expires
    assert timedelta(days=29) < entry.expires - datetime.now(UTC) < timedelta(days=30, seconds=1)

    assert run_command(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith(f"{entry.id}  ann  user,operator  expires ")
    assert out.strip() not in listed

    assert run_command(["keys", "revoke", entry.id]) == 0
    assert run_command(["keys", "revoke", entry.id]) == keys.NOT_FOUND
    assert list_keys(path) == ()


def test_the_command_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("API_KEYS_FILE", raising=False)
    assert run_command(["keys", "list"]) == keys.WRONG
    assert "API_KEYS_FILE is not set" in capsys.readouterr().err
    assert run_command(["keys", "--file", str(tmp_path / "keys.json"), "add", "two words"]) == keys.WRONG
    assert "cannot be a name" in capsys.readouterr().err
    (tmp_path / "keys.json").write_text("not JSON")
    assert run_command(["keys", "--file", str(tmp_path / "keys.json"), "add", "ann"]) == keys.WRONG
    assert "is not a file of keys" in capsys.readouterr().err
    assert (tmp_path / "keys.json").read_text() == "not JSON", "a file that cannot be read is not replaced"
    with pytest.raises(SystemExit, match="2"):
        run_command(["something"])


@promise("a message that waits begins only with the rights that its sender has then, and is held otherwise")
async def test_a_message_that_waits_has_the_rights_that_its_sender_has_now(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    entry, _ = add_key(path, "ann", ["user"], None)
    expired, _ = add_key(path, "ann", ["user"], datetime.now(UTC) - timedelta(days=1))
    operator, _ = add_key(path, "ann", ["operator"], None)
    authenticator = Authenticator(ApiKeys({}, path), FailedAttempts(10))

    async def rights(subject: str = "ann", **sender: Any) -> tuple[str, ...] | HeldReason:
        return await authenticator.rights(Turn("turn", "session", subject, roles=("user", "then"), **sender))

    def of(key: ApiKey) -> dict[str, str]:
        return {"key_id": key.id, "credential": key.principal().credential}

    assert await rights(**of(entry)) == ("user",)
    assert await rights("eve", **of(entry)) is HeldReason.CREDENTIAL_REVOKED
    assert await rights(key_id="k", credential="key:" + "0" * 64) is HeldReason.CREDENTIAL_REVOKED
    assert await rights(**of(expired)) is HeldReason.CREDENTIAL_EXPIRED
    assert await rights(**of(operator)) is HeldReason.FORBIDDEN
    now = datetime.now(UTC).timestamp()
    assert await rights(key_id="page", expires_at=now + 60) == ("user", "then"), "until the sign-in ends"
    assert await rights(key_id="page", expires_at=now - 1) is HeldReason.CREDENTIAL_EXPIRED
    assert await rights() is HeldReason.CREDENTIAL_REVOKED, "from before senders needed a key"


# --- How often an address may fail to prove who it is, and who is still served from there ---


@promise("wrong keys are slowed down, and right ones behind the same address are served")
def test_after_the_limit_an_address_waits_and_then_gets_one_attempt_after_the_other() -> None:
    clock = HandClock()
    attempts = FailedAttempts(10, now=clock)
    for _ in range(10):
        assert attempts.wait("10.0.0.1") == 0
        attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 6
    assert attempts.wait("10.0.0.2") == 0
    clock.now += 5.9
    assert attempts.wait("10.0.0.1") == 1
    clock.now += 0.2
    assert attempts.wait("10.0.0.1") == 0
    attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 6
    clock.now += 120
    for _ in range(10):
        assert attempts.wait("10.0.0.1") == 0
        attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 6, "what was not used does not add up"


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "", True),
    ],
)
def test_an_ipv6_network_is_one_address(first: str, second: str, same: bool) -> None:
    attempts = FailedAttempts(1, now=HandClock())
    attempts.failed(first)
    assert (attempts.wait(second) > 0) == same


def test_the_number_of_addresses_is_bounded() -> None:
    attempts = FailedAttempts(1, now=HandClock())
    addresses = [f"10.0.{n // 250}.{n % 250}" for n in range(MOST_ADDRESSES + 100)]
    for address in addresses:
        attempts.failed(address)
    assert len(attempts) == MOST_ADDRESSES
    assert (attempts.wait(addresses[0]), attempts.wait(addresses[-1]) > 0) == (0, True)


KEYS = {"ann": SecretStr("a key of ann's"), "bob": SecretStr("a key of bob's")}


@promise("wrong keys are slowed down, and right ones behind the same address are served")
async def test_valid_keys_are_served_from_an_address_that_fails() -> None:
    """Behind a proxy every client may have this address. Eleven wrong keys locked all of them out."""
    clock = HandClock()
    authenticator = Authenticator(ApiKeys(KEYS), FailedAttempts(10, now=clock))
    for n in range(10):
        with pytest.raises(UnauthenticatedError):
            await authenticator.authenticate(f"guess {n}", "10.0.0.1")
    with pytest.raises(TooManyAttemptsError) as refused:
        await authenticator.authenticate("guess 11", "10.0.0.1")
    assert refused.value.retry_in == 6
    for name in ("ann", "bob"):
        assert (await authenticator.authenticate(f"a key of {name}'s", "10.0.0.1")).subject == name
    clock.now += 6
    with pytest.raises(UnauthenticatedError):
        await authenticator.authenticate("guess 12", "10.0.0.1")
