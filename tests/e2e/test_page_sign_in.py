"""Signing in on the page, with a real engine and a provider that is asked over HTTP."""

from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import BrowserContext, expect

from deploy.local.ports import free_port
from tests.e2e.chat_page import ChatPage, press
from tests.integration.engines import Model, running_engine, settings
from tests.marks import exhaustive
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]


@dataclass
class Site:
    url: str
    portal: BlockingPortal
    model: Model

    def silence(self) -> None:
        """The model says no more after its first words."""
        self.portal.call(self.model.held.clear)

    def go_on(self) -> None:
        self.portal.call(self.model.held.set)


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Iterator[Site]:
    """An engine that wants people to sign in."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    @asynccontextmanager
    async def engine():
        async with OidcProvider().serving() as provider, Model().serving() as model:
            configured = settings(
                tmp_path,
                redis_url,
                model.url,
                oidc_issuer=provider.issuer,
                oidc_client_id=CLIENT_ID,
                oidc_client_secret=CLIENT_SECRET,
                public_url=url,
            )
            async with running_engine(configured, port=port):
                yield model

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(engine()) as model:
        yield Site(url, portal, model)


@pytest.fixture
def url(site: Site) -> str:
    return site.url


def test_a_person_signs_in_by_keyboard_asks_comes_back_and_signs_out_of_every_tab(
    context: BrowserContext, url: str
) -> None:
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    chat = ChatPage(page, url)
    chat.open()
    expect(chat.key_dialog.get_by_role("heading")).to_have_text("Sign in")
    press(chat.key_dialog.get_by_role("button", name="Not now"))
    expect(chat.input).to_be_focused()
    page.keyboard.type("Hi")
    press(page.get_by_test_id("notice-action"))
    press(page.get_by_test_id("sign-in"))
    expect(page.get_by_test_id("signed-in")).to_have_text("Signed in as Ann of OIDC")
    expect(chat.key_dialog).to_be_hidden()
    expect(chat.input).to_have_value("Hi")
    chat.input.press("Enter")
    expect(chat.answers).to_have_text("Hello")
    [session] = [cookie for cookie in context.cookies() if cookie.get("name") == "callstream"]
    assert session.get("httpOnly")
    assert session.get("sameSite") == "Lax"
    assert page.evaluate("document.cookie") == ""

    # The session ends, a wrong key is in the tab, and a sign-in is refused.
    address = page.url
    chat.input.fill("And then?")
    context.clear_cookies()
    page.evaluate("sessionStorage.setItem('callstream.key', 'wrong')")
    page.reload()
    expect(page.get_by_test_id("key-rejected")).to_contain_text("did not accept this key")
    page.goto(f"{url}/sign-in/callback?error=access_denied")
    expect(page.get_by_test_id("key-rejected")).to_contain_text("you are not signed in")
    page.goto(address)
    page.get_by_test_id("sign-in").click()
    expect(chat.answers).to_have_text("Hello")
    expect(chat.input).to_have_value("And then?")
    assert page.url == address

    other = ChatPage(context.new_page(), url)
    other.open(address.rpartition("/")[2])
    expect(other.answers).to_have_text("Hello")
    page.get_by_test_id("sign-out").click()
    for tab in (chat, other):
        expect(tab.key_dialog).to_be_visible()
        expect(tab.answers).to_have_count(0)
    assert [cookie for cookie in context.cookies() if cookie.get("name") == "callstream"] == []
    assert errors == []


def test_a_sign_in_that_ends_during_an_answer_leaves_the_address_the_draft_and_the_answer(
    context: BrowserContext, site: Site
) -> None:
    chat = ChatPage(context.new_page(), site.url)
    chat.open()
    chat.page.get_by_test_id("sign-in").click()
    expect(chat.page.get_by_test_id("signed-in")).to_be_visible()
    site.silence()
    chat.ask("Hi")
    expect(chat.answers).to_have_text("He")
    address = chat.page.url
    chat.input.fill("And then?")
    context.clear_cookies()
    chat.stop.click()
    expect(chat.key_dialog.get_by_role("heading")).to_have_text("Sign in")
    chat.page.get_by_test_id("sign-in").click()
    expect(chat.questions).to_have_text("Hi")
    expect(chat.input).to_have_value("And then?")
    assert chat.page.url == address
    expect(chat.answers).to_have_text("He")
    site.go_on()
    expect(chat.answers).to_have_text("Hello")
    chat.expect_idle()
