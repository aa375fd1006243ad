"""Where providers are asked, as whom, and what of that other servers are told."""

import pytest
from yarl import URL

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.endpoint import Endpoint, redirected

SECRETS = {"Authorization": "Bearer hunter2", "x-api-key": "hunter2"}


def endpoint(base_url: str) -> Endpoint:
    return Endpoint(base_url, "/chat/completions", public={"anthropic-version": "1"}, private=SECRETS)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h", "http://h/chat/completions"),
        ("http://h/a%20b", "http://h/a%20b/chat/completions"),
        ("https://h:1/v1?api-version=1&key=a%26b", "https://h:1/v1/chat/completions?api-version=1&key=a%26b"),
        ("http://h/v1/?x=1#there", "http://h/v1/chat/completions?x=1"),
        ("http://user:hunter2@h/v1", "http://h/v1/chat/completions"),
        ("http://[::1]:11434/v1", "http://[::1]:11434/v1/chat/completions"),
    ],
)
def test_the_resource_is_below_the_base_url_whose_query_is_kept(base_url: str, url: str) -> None:
    assert str(endpoint(base_url).url) == url


def test_what_is_no_url_stops_the_start_and_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        endpoint("http://user:hunter2@h:port/v1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["hunter2\n", "a\x00b"])
def test_a_key_that_cannot_be_sent_stops_the_start_and_is_not_repeated(key: str) -> None:
    with pytest.raises(ConfigurationError, match="key") as caught:
        Endpoint("http://h", "/x", public={}, private={"Authorization": f"Bearer {key}"})
    assert key not in str(caught.value)


def test_the_operators_header_fields_take_the_place_of_ours_and_are_secret() -> None:
    own = {"authorization": "", "api-key": "hunter2", "user-agent": "Mine"}
    at = Endpoint("http://h", "/x", public={}, private={"Authorization": "Bearer a"}, own=own)
    sent = at.headers(at.url)
    assert "Authorization" not in sent
    assert (sent.getall("api-key"), sent.getall("User-Agent")) == (["hunter2"], ["Mine"])
    assert "hunter2" not in str(at.headers(URL("http://other/x")))


@pytest.mark.parametrize(
    ("own", "target", "is_own"),
    [
        ("http://h/v1", "http://h/v2", True),
        ("http://h/v1", "http://H:80/v2", True),
        ("http://h/v1", "https://h/v1", True),
        ("http://h/v1", "https://h:444/v1", False),
        ("http://h:8000/v1", "https://h/v1", False),
        ("https://h/v1", "http://h/v1", False),
        ("http://h/v1", "http://h:8000/v1", False),
        ("http://h/v1", "http://other/v1", False),
        ("http://h/v1", "https://other/v1", False),
        ("http://h/v1", "http://sub.h/v1", False),
    ],
)
def test_secrets_are_for_the_providers_own_origin(own: str, target: str, *, is_own: bool) -> None:
    sent = endpoint(own).headers(URL(target))
    assert ("hunter2" in str(sent)) is is_own
    assert sent["anthropic-version"] == "1"
    assert sent["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/v2/x?a=b", "http://h/v2/x?a=b"),
        ("there", "http://h/v1/there"),
        ("https://other/x", "https://other/x"),
        ("//other/x", "http://other/x"),
        ("http://user:password@other/x", "http://other/x"),
        ("", None),
        (None, None),
        ("ftp://other/x", None),
        ("http://other:port/x", None),
        ("mailto:a@b", None),
    ],
)
def test_a_redirect_leads_to_what_can_be_asked(location: str | None, target: str | None) -> None:
    assert redirected(URL("http://h/v1/x"), location) == (URL(target) if target else None)
