"""Which proxy the environment names for an address."""

import pytest
from yarl import URL

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.proxies import Proxies


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)


def proxy_of(url: str) -> str | None:
    proxy = Proxies().of(URL(url))
    return None if proxy is None else str(proxy)


def test_without_an_environment_there_is_no_proxy() -> None:
    assert proxy_of("https://api.openai.com/v1") is None


def test_each_scheme_has_its_own_and_all_is_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy:3128")
    assert proxy_of("https://h/") == "http://user:password@proxy:3128"
    assert proxy_of("http://h/") is None
    monkeypatch.setenv("all_proxy", "other:8080")
    assert proxy_of("https://h/") == "http://user:password@proxy:3128"
    assert proxy_of("http://h/") == "http://other:8080"


@pytest.mark.parametrize(
    ("entry", "url", "direct"),
    [
        ("*", "https://h/", True),
        ("localhost", "http://localhost:11434/", True),
        ("example.com", "https://example.com/", True),
        ("EXAMPLE.com", "https://api.example.com/", True),
        ("example.com", "https://anexample.com/", False),
        (".example.com", "https://api.example.com/", True),
        (".example.com", "https://example.com/", False),
        ("*.example.com", "https://api.example.com/", True),
        ("example.com:8443", "https://example.com:8443/", True),
        ("example.com:8443", "https://example.com/", False),
        ("https://example.com", "https://example.com/", True),
        ("http://example.com", "https://example.com/", False),
        ("10.0.0.0/8", "http://10.1.2.3:8000/", True),
        ("10.0.0.0/8", "http://11.1.2.3/", False),
        ("10.0.0.0/8", "http://ten.example/", False),
        ("127.0.0.1", "http://127.0.0.1:1/", True),
        ("::1", "http://[::1]:1/", True),
        ("[::1]", "http://[::1]:1/", True),
        ("fd00::/8", "http://[fd12::1]/", True),
        ("a, ,h ", "http://h/", True),
        ("host:port", "http://host/", False),
    ],
)
def test_what_no_proxy_names_is_asked_directly(
    monkeypatch: pytest.MonkeyPatch, entry: str, url: str, *, direct: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", entry)
    assert (proxy_of(url) is None) is direct


@pytest.mark.parametrize("address", ["socks5://user:hunter2@proxy:1080", "http://user:hunter2@proxy:port"])
def test_a_proxy_that_cannot_be_used_stops_the_start_and_its_password_is_not_told(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(ConfigurationError) as caught:
        Proxies()
    assert "hunter2" not in str(caught.value)
