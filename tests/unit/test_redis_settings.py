"""Where Redis is and how to log in: the same settings for every program, checked at the start, and no secret shown."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callstream_runtime.connections import blocking_client, command_client, thread_client
from callstream_runtime.settings import Login, RedisAddress, RedisSettings, ServiceSettings, Tls, parse_redis_url
from callstream_runtime.settings_sources import read_settings, readable_by_all
from dialog_engine.errors import ConfigurationError
from dialog_engine.settings import load_settings
from plugins_mcp.config import Settings as WorkerSettings
from plugins_mcp.config import load_operator_settings
from plugins_mcp.config import load_settings as load_worker
from plugins_mcp.errors import SettingsError
from tests.marks import promise
from tests.support.certificates import Certificates, make_certificates

SECRET = "s3cr3t-of-mine"


def load_engine() -> RedisSettings:
    return load_settings().service


PROGRAMS: tuple[Callable[[], RedisSettings], ...] = (load_engine, load_worker, load_operator_settings)


@pytest.fixture(autouse=True)
def necessary(nothing_is_set: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each program cannot do without."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("MCP_SERVER_ENDPOINT", "http://127.0.0.1:9/mcp")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host", RedisAddress((("host", 6379),))),
        ("redis://host:1/2", RedisAddress((("host", 1),), database=2)),
        ("redis://[::1]:1/", RedisAddress((("::1", 1),))),
        ("redis://u%40x:p%2Fq@host", RedisAddress((("host", 6379),), login=Login("u@x", "p/q"))),
        ("redis://:p@host", RedisAddress((("host", 6379),), login=Login(None, "p"))),
        ("rediss://host", RedisAddress((("host", 6379),), tls=Tls())),
        ("unix:///run/r.sock", RedisAddress(socket_path="/run/r.sock")),
        ("unix://u:p@/run/r.sock?db=3", RedisAddress(socket_path="/run/r.sock", database=3, login=Login("u", "p"))),
        ("redis+sentinel://a/m", RedisAddress((("a", 26379),), service="m")),
        (
            "rediss+sentinel://u:p@a:1,[::2]:3,c/m/4",
            RedisAddress(
                (("a", 1), ("::2", 3), ("c", 26379)), service="m", database=4, login=Login("u", "p"), tls=Tls()
            ),
        ),
    ],
)
def test_a_url_says_where_redis_is(url: str, address: RedisAddress) -> None:
    assert parse_redis_url(url) == address


@promise("TLS, an ACL user and Sentinel can be configured")
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"REDIS_URL": f"http://:{SECRET}@redis"}, "REDIS_URL: must begin with redis://, rediss://, unix://"),
        ({"REDIS_URL": "127.0.0.1:6379"}, "REDIS_URL: must begin with redis://, rediss://, unix://"),
        ({"REDIS_URL": f"redis://:{SECRET}/x@redis"}, "REDIS_URL: is not a URL"),
        ({"REDIS_URL": f"redis://:a{SECRET}#b@redis:6379"}, "REDIS_URL: "),
        ({"REDIS_URL": f"redis://{SECRET}@"}, "REDIS_URL: has no host"),
        ({"REDIS_URL": f"redis://:{SECRET}@a,b"}, "REDIS_URL: names several hosts"),
        ({"REDIS_URL": f"redis://:{SECRET}@a/first"}, "REDIS_URL: names a database that is not a number"),
        ({"REDIS_URL": f"redis://h?password={SECRET}"}, "REDIS_URL: has options after"),
        ({"REDIS_URL": "redis://h?retry_on_timeout=true"}, "REDIS_URL: has options after"),
        ({"REDIS_URL": f"unix:///s?password={SECRET}"}, "REDIS_URL: has options after"),
        ({"REDIS_URL": "unix://"}, "REDIS_URL: has no path"),
        ({"REDIS_URL": f"redis+sentinel://:{SECRET}@a:1"}, "REDIS_URL: names no service"),
        ({"REDIS_URL": f"redis://user@{SECRET}"}, "REDIS_URL: it names a user without a password"),
        ({"REDIS_URL": f"redis://:{SECRET}@h", "REDIS_PASSWORD": SECRET}, "REDIS_PASSWORD: REDIS_URL has one as well"),
        ({"REDIS_USERNAME": "ann"}, "REDIS_USERNAME: a user needs a password: set REDIS_PASSWORD"),
        ({"REDIS_SENTINEL_PASSWORD": SECRET}, "REDIS_SENTINEL_PASSWORD: REDIS_URL names no Sentinels"),
        (
            {"REDIS_URL": "redis+sentinel://a/m", "REDIS_SENTINEL_USERNAME": "ann"},
            "REDIS_SENTINEL_USERNAME: a user needs a password",
        ),
        ({"REDIS_TLS_CA_FILE": "ca.pem"}, "REDIS_TLS_CA_FILE: REDIS_URL is not for TLS"),
        ({"REDIS_URL": "rediss://h", "REDIS_TLS_CA_FILE": "none.pem"}, "REDIS_TLS_CA_FILE: none.pem cannot be read"),
        ({"REDIS_URL": "rediss://h", "REDIS_TLS_CHECK_HOSTNAME": "perhaps"}, "REDIS_TLS_CHECK_HOSTNAME: "),
    ],
)
def test_a_wrong_value_names_its_variable_and_what_to_do_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], words: str
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for program in PROGRAMS:
        with pytest.raises((ConfigurationError, SettingsError)) as caught:
            program()

        assert str(caught.value).startswith(words)
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"ca_file": "key"}, "REDIS_TLS_CA_FILE: .* holds no certificate in PEM"),
        ({"key_file": "key"}, "REDIS_TLS_KEY_FILE: set REDIS_TLS_CERT_FILE too"),
        ({"cert_file": "client", "key_file": "key"}, "REDIS_TLS_CERT_FILE: it and REDIS_TLS_KEY_FILE must be"),
        ({"cert_file": "client", "key_file": "encrypted"}, "REDIS_TLS_CERT_FILE: .* not encrypted"),
    ],
)
def test_files_for_tls_are_tried_at_the_start(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates, tmp_path: Path, files: dict[str, str], words: str
) -> None:
    encrypted = tmp_path / "encrypted.key"
    encrypt = ["openssl", "pkey", "-in", certificates.client_key, "-aes256", "-passout", "pass:x", "-out", encrypted]
    subprocess.run(encrypt, check=True, capture_output=True)
    paths = {"key": certificates.server_key, "client": certificates.client, "encrypted": encrypted}
    monkeypatch.setenv("REDIS_URL", "rediss://h")
    for name, which in files.items():
        monkeypatch.setenv(f"REDIS_TLS_{name.upper()}", str(paths[which]))

    with pytest.raises(SettingsError, match=words):
        load_operator_settings()


def test_everything_together_makes_one_address(monkeypatch: pytest.MonkeyPatch, certificates: Certificates) -> None:
    for name, value in {
        "REDIS_URL": "rediss+sentinel://a,b/mymaster/1",
        "REDIS_USERNAME": "ann",
        "REDIS_PASSWORD": SECRET,
        "REDIS_SENTINEL_PASSWORD": "other",
        "REDIS_TLS_CA_FILE": str(certificates.ca),
        "REDIS_TLS_CERT_FILE": str(certificates.client),
        "REDIS_TLS_KEY_FILE": str(certificates.client_key),
        "REDIS_TLS_CHECK_HOSTNAME": "false",
    }.items():
        monkeypatch.setenv(name, value)

    assert load_operator_settings().redis_address == RedisAddress(
        (("a", 26379), ("b", 26379)),
        service="mymaster",
        database=1,
        login=Login("ann", SECRET),
        sentinel_login=Login(None, "other"),
        tls=Tls(str(certificates.ca), str(certificates.client), str(certificates.client_key), check_hostname=False),
    )


@promise("TLS, an ACL user and Sentinel can be configured")
@pytest.mark.parametrize("variable", ["REDIS_URL", "REDIS_PASSWORD", "REDIS_SENTINEL_PASSWORD"])
def test_a_password_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    url = "rediss+sentinel://" if variable == "REDIS_SENTINEL_PASSWORD" else "redis://"
    monkeypatch.setenv("REDIS_URL", f"{url}:{SECRET}@host/1" if variable == "REDIS_URL" else f"{url}host/1")
    if variable != "REDIS_URL":
        monkeypatch.setenv(variable, SECRET)
    for program in PROGRAMS:
        settings = program()
        address = settings.redis_address
        clients: list[Any] = [
            command_client(address),
            blocking_client(address, block_seconds=1),
            thread_client(address),
        ]

        assert SECRET in (address.login.password, address.sentinel_login.password)
        shown = [settings, address, *clients, *(client.connection_pool for client in clients)]
        assert not [text for value in shown for text in (repr(value), str(value)) if SECRET in text]


@pytest.mark.parametrize("kind", [ServiceSettings, WorkerSettings, RedisSettings])
def test_passwords_may_be_files(kind: type[RedisSettings], tmp_path: Path) -> None:
    (tmp_path / "redis_password").write_text(f"{SECRET}\n")

    assert read_settings(kind, _secrets_dir=tmp_path).redis_address.login == Login(None, SECRET)


@pytest.mark.parametrize("load", PROGRAMS)
def test_a_key_file_that_all_may_read_is_named_with_the_fix(
    load: Callable[[], RedisSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUEST_KEYS_FILE", "ENCRYPTION_KEYS_FILE"):
        (tmp_path / name).write_text("0" * 64)
        (tmp_path / name).chmod(0o640)
        monkeypatch.setenv(name, str(tmp_path / name))
    assert readable_by_all(load()) == []

    (tmp_path / "REQUEST_KEYS_FILE").chmod(0o644)
    [warning] = readable_by_all(load())
    assert warning.startswith("REQUEST_KEYS_FILE: every user of this machine can read ")
    assert f"chmod o-rwx {tmp_path}/REQUEST_KEYS_FILE" in warning


@pytest.mark.parametrize("load", PROGRAMS)
def test_a_key_of_an_example_is_refused(
    load: Callable[[], RedisSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text(f"{'0' * 64}\nchange-me-to-a-key-of-thirty-two-characters\n")
    monkeypatch.setenv("REQUEST_KEYS_FILE", str(tmp_path / "keys"))
    with pytest.raises((ConfigurationError, SettingsError), match=r"REQUEST_KEYS_FILE: .* holds the key of an example"):
        load()
