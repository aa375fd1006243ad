"""Services of the previous release and of this one work together: workers and engines are replaced one by one."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect
from redis import Redis

from dialog_engine.storage import schemas
from dialog_engine.storage.postgres import open_postgres
from plugins_contract.keys import Keys
from tests.e2e.chat_page import ChatPage
from tests.marks import exhaustive, promise
from tests.support import previous_release
from tests.support.previous_release import PreviousRelease
from tests.support.replicas import Replica, read_to_the_end
from tests.support.stack import ENGINE, Stack, events_of, running_stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(previous_release.missing() is not None, reason=previous_release.missing() or ""),
    exhaustive("the previous release as real processes"),
]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> PreviousRelease:
    return PreviousRelease(tmp_path_factory.mktemp("previous-release"))


@contextmanager
def parts(
    *, worker: list[str] | None = None, engine: list[str] | None = None, keys: Path | None = None
) -> Generator[Stack]:
    """A stack with one worker and one engine on a PostgreSQL; None is this release. `keys` sign requests."""
    shared = {"REQUEST_KEYS_FILE": str(keys), "ACCEPT_FIRST_LISTINGS": "true"} if keys else {}
    # Beside an older worker, which signs no catalog, an engine with keys must be set to believe it.
    engine_env = shared | ({"ACCEPT_UNSIGNED_CATALOGS": "true"} if keys and worker else {})
    with running_stack(start=False, database="postgres", worker_env=shared, engine_env=engine_env) as stack:
        stack.start_store()
        stack.redis.start()
        stack.start_demo()
        stack.start_model()
        stack.start_worker(program=worker or ())
        stack.engine = stack.run_engine(stack.engine_port, "engine", engine or ENGINE)
        stack.wait_for_tools()
        yield stack


@pytest.fixture(params=["worker", "engine"])
def mixed(request: pytest.FixtureRequest, previous: PreviousRelease, keys: Path) -> Generator[Stack]:
    """A stack of this release with request keys, one part of which is of the previous one."""
    old = {"worker": {"worker": previous.worker}, "engine": {"engine": previous.engine}}
    with parts(**old[request.param], keys=keys) as stack:
        yield stack


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "request.keys"
    path.write_text("k" * 32)
    return path


def approved(stack: Stack, message: str, session: str = "") -> str:
    """How a call ended that a person has approved, in this conversation or a new one."""
    session = session or stack.http.post("/v1/sessions").json()["sessionId"]
    turn = stack.http.post(f"/v1/sessions/{session}/turns", json={"message": message}).json()["turnId"]
    with stack.http.stream("GET", f"/v1/turns/{turn}/events") as stream:
        for event in events_of(stream.iter_lines()):
            if event.data.get("status") == "asked":
                path = f"/v1/turns/{turn}/approvals/{event.data['toolCallId']}"
                decision = {"decision": "approve", "hash": event.data["hash"]}
                assert stack.http.post(path, json=decision).status_code == 200
            if event.name == "done":
                break
    [statuses] = stack.follow(turn).statuses("demo__delete_everything")
    return statuses[-1]


@promise(
    "parts of the last release and of this one work together", only_in_test_all="the last release as real processes"
)
def test_an_old_and_a_new_part_run_tools_report_progress_and_failures_and_stop_calls(mixed: Stack) -> None:
    times = mixed.ask("What time is it in Tokyo and in Paris?")
    assert times.reason == "stop"
    assert [each[-1] for each in times.statuses("time__get_current_time")] == ["succeeded"] * 2

    slow = mixed.ask("Run a slow job for 1 second")
    # An older worker says that a call is running at once: sometimes before the engine knows that it is queued.
    statuses = [[each for each in of_call if each != "queued"] for of_call in slow.statuses("demo__slow_job")]
    assert statuses == [["pending", "running", "progress", "succeeded"]]

    assert approved(mixed, "Delete everything, with token approved") == "succeeded"

    failing = mixed.ask("Call the failing tool")
    assert failing.statuses("demo__fail")[0][-1] == "failed"

    session = mixed.http.post("/v1/sessions").json()["sessionId"]
    body = {"message": "Run a slow job for 60 seconds, with token stopped"}
    turn = mixed.http.post(f"/v1/sessions/{session}/turns", json=body).json()["turnId"]
    mixed.wait_for_effect("stopped")
    assert mixed.http.post(f"/v1/turns/{turn}/cancel").status_code == 202
    wait_until_blocking(lambda: len(mixed.effects("stopped")) == 2, what="the cancelled call")
    assert [effect["status"] for effect in mixed.effects("stopped")] == ["started", "cancelled"]
    assert mixed.follow(turn).reason == "cancelled"


@pytest.mark.parametrize("old_first", [True, False], ids=["upgrade", "back"])
def test_the_turn_of_an_engine_that_is_replaced_ends_at_one_of_the_other_release(
    previous: PreviousRelease, old_first: bool
) -> None:
    with parts(engine=[*map(str, previous.engine)]) as stack:
        assert stack.engine
        stack.engine.stop()
        # The old engine first: it runs on while the new one migrates the store, and could not be started afterwards.
        old = Replica(stack, "old", program=previous.engine)
        old.wait_for_tools()
        new = Replica(stack, "new", program=ENGINE)
        new.wait_for_tools()
        leaving, staying = (old, new) if old_first else (new, old)
        session, turn = leaving.begin("Run a slow job for 5 seconds, with token moved")
        stack.wait_for_effect("moved")
        leaving.process.send(signal.SIGTERM)
        transcript = Transcript()
        read_to_the_end(staying.http, turn, transcript, 60)

        assert [message["role"] for message in staying.messages(session)][-1] == "assistant"
        assert [effect["status"] for effect in stack.effects("moved")] == ["started", "finished"]
        leaving.close()
        staying.close()


def test_beside_an_engine_of_the_last_release_nothing_is_parked_and_no_question_is_declared(
    previous: PreviousRelease,
) -> None:
    with parts(engine=previous.engine) as stack:
        assert stack.engine
        new = Replica(stack, "new")
        new.wait_for_tools()
        _, turn = new.begin("Delete everything, with token parked")
        state = f"/v1/turns/{turn}"
        wait_until_blocking(lambda: new.http.get("/v1/me/pending").json()["approvals"], 60, what="the question")
        assert declares_questions(stack, new, "beside") is False
        assert "parked" not in new.http.get(state).json()
        stack.engine.stop()
        wait_until_blocking(lambda: new.http.get(state).json().get("parked"), 60, what="the parked turn")
        assert declares_questions(stack, new, "alone") is True
        new.close()


def declares_questions(stack: Stack, engine: Replica, token: str) -> bool:
    """Whether a request of the engine says that questions of the server are answered."""
    engine.begin(f"Run a slow job for 3 seconds, with token {token}")
    stack.wait_for_effect(token)
    with Redis.from_url(stack.redis.url) as redis:
        client: Any = redis
        streams = [Keys().requests, *client.scan_iter(Keys().requests_of("*"))]
        events = [fields[b"event"] for each in streams for _, fields in client.xrange(each)]
    [event] = [each for each in events if token.encode() in each]
    return b'"mayAsk":true' in event


@promise("parts of the last release and of this one work together", only_in_test_all="the same")
def test_a_migration_of_postgresql_goes_forward_while_an_old_engine_runs_a_turn(
    previous: PreviousRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables and columns that are added do not disturb a release that does not know them."""
    newest = schemas.newest("postgres") + 1
    adding = "ALTER TABLE turns ADD COLUMN later text; CREATE TABLE later (a text)"

    def migrations(_: str) -> dict[int, str]:
        return {**dict.fromkeys(range(2, newest), ""), newest: adding}

    async def migrate(url: str) -> object:
        async with open_postgres(url, 1) as database:
            return await database.read("SELECT value FROM meta WHERE key = 'tables_version'")

    with parts(engine=previous.engine) as stack:
        assert stack.postgres
        with stack.asking("Run a slow job for 3 seconds, with token migrated") as events:
            stack.wait_for_effect("migrated")
            monkeypatch.setattr(schemas, "migrations", migrations)
            assert asyncio.run(migrate(stack.postgres.url_of("callstream"))) == [(str(newest),)]
            last = list(events)[-1]

        assert last.data["reason"] == "stop"
        assert stack.ask("hello").reason == "stop"


@promise("parts of the last release and of this one work together", only_in_test_all="the same")
@pytest.mark.browser
def test_a_conversation_of_the_last_release_gets_branches_and_the_old_engine_goes_on_with_it(
    previous: PreviousRelease, context: BrowserContext
) -> None:
    with running_stack(start=False, database="postgres", engine_env={"ENABLE_MCP": "false"}) as stack:
        stack.start_store()
        stack.redis.start()
        stack.start_model()
        old = Replica(stack, "old", program=previous.engine)
        session = answered(old, "one")
        answered(old, "two", session)
        new = Replica(stack, "new")  # it migrates the store
        chat = ChatPage(context.new_page(), str(new.http.base_url).rstrip("/"))
        chat.open(session)
        expect(chat.questions).to_have_text(["one", "two"])
        chat.edit(0, "eins")
        expect(chat.questions).to_have_text(["eins"])
        expect(chat.page.get_by_test_id("versions")).to_contain_text("2/2")
        chat.expect_idle()

        answered(old, "three", session)
        chat.page.reload()
        expect(chat.questions).to_have_text(["eins", "three"])
        chat.page.get_by_test_id("version-before").click()
        expect(chat.questions).to_have_text(["one", "two"])
        chat.ask("four")
        expect(chat.questions).to_have_text(["one", "two", "four"])
        expect(chat.answers).to_have_count(3)
        chat.expect_idle()
        asked = [each["content"] for each in old.messages(session) if each["role"] == "user"]
        assert asked == ["one", "two", "eins", "three", "four"]
        for engine in (old, new):
            engine.close()


@promise("parts of the last release and of this one work together", only_in_test_all="the same")
@pytest.mark.browser
def test_the_file_of_an_engine_of_the_last_release_that_was_killed_is_shown_and_goes_on(
    previous: PreviousRelease, context: BrowserContext
) -> None:
    questions = [
        "What time is it in Tokyo and in Paris?",
        "Delete everything, with token approved",
        "Run a slow job for 60 seconds, with token stopped",
        "Run a slow job for 5 seconds, with token killed",
    ]
    with running_stack(start=False) as stack:
        stack.start_all_but_engines()
        stack.engine = stack.run_engine(stack.engine_port, "engine", previous.engine)
        stack.wait_for_tools()
        session = stack.http.post("/v1/sessions").json()["sessionId"]
        stack.ask(questions[0], session)
        assert approved(stack, questions[1], session) == "succeeded"
        path = f"/v1/sessions/{session}/turns"
        turn = stack.http.post(path, json={"message": questions[2]}).json()["turnId"]
        stack.wait_for_effect("stopped")
        stack.http.post(f"/v1/turns/{turn}/cancel")
        assert stack.follow(turn).reason == "cancelled"
        stack.http.post(path, json={"message": questions[3]})
        stack.wait_for_effect("killed")
        stack.engine.kill()
        stack.bury(stack.engine)
        stack.start_engine()

        chat = ChatPage(context.new_page(), stack.url)
        chat.open(session)
        expect(chat.questions).to_have_text(questions)
        expect(chat.answers.nth(1)).to_contain_text("Tokyo")
        chat.card("demo__delete_everything").expect_status("succeeded")
        expect(chat.page.get_by_test_id("answer-actions").last).to_be_visible(timeout=60_000)
        chat.expect_idle()
        assert [effect["status"] for effect in stack.effects("killed")] == ["started", "finished"]
        live, opened = chat.says()
        chat.page.reload()
        expect(chat.questions).to_have_text(questions)
        expect(chat.page.get_by_test_id("facts")).to_have_count(4)
        # The last release stored no titles of tools: that of its running call is in the log of the turn only.
        assert chat.says() == [live.replace("“Slow job”", ""), opened]

        chat.edit(2, "What is 17 * 23?")
        chat.page.get_by_test_id("leaving-confirm").click()
        expect(chat.questions).to_have_text([*questions[:2], "What is 17 * 23?"])
        expect(chat.answers.last).to_contain_text("391")
        chat.expect_idle()
        chat.page.get_by_test_id("version-before").click()
        expect(chat.questions).to_have_text(questions)
        chat.ask("What is 6 * 7?")
        expect(chat.answers.last).to_contain_text("42")
        chat.expect_idle()


@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
def test_a_message_that_waits_begins_after_a_turn_that_an_old_engine_has_ended(previous: PreviousRelease) -> None:
    off = {"ENABLE_MCP": "false"}
    with running_stack(start=False, token_delay_ms=30, database="postgres", engine_env=off) as stack:
        stack.start_store()
        stack.redis.start()
        stack.start_model()
        old = Replica(stack, "old", program=previous.engine)
        stack.start_engine()
        session_id, _ = old.begin("Hello, who are you?")
        body = {"message": "And now?", "onBusy": "queue"}
        waiting = stack.http.post(f"/v1/sessions/{session_id}/turns", json=body).json()
        assert waiting["status"] == "waiting"
        assert stack.follow(waiting["turnId"]).reason == "stop"
        asked = [each["content"] for each in old.messages(session_id) if each["role"] == "user"]
        assert asked == ["Hello, who are you?", "And now?"]
        old.close()


def answered(engine: Replica, message: str, session: str | None = None) -> str:
    """The session of a turn that has ended."""
    session, turn = engine.begin(message, session)
    transcript = Transcript()
    read_to_the_end(engine.http, turn, transcript, 60)
    return session
