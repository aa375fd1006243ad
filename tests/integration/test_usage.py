"""What was used by day, subject, model and tool: counted with the end of a turn, priced, and shown to operators."""

import asyncio
import csv
import io
import json
import re
import sqlite3
from contextlib import closing
from dataclasses import astuple
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dialog_engine.chat.service import Draft
from dialog_engine.consumption.usage import Used, Wanted, as_csv, read_prices
from dialog_engine.errors import ConfigurationError, TurnFencedError
from dialog_engine.identity.api_keys import add_key
from dialog_engine.identity.authenticator import NoCredentials
from dialog_engine.identity.principal import OPERATOR
from dialog_engine.model import (
    AnsweredBy,
    AssistantMessage,
    DoneReason,
    FinishReason,
    StreamEnd,
    TokensSpent,
    ToolCall,
    Turn,
    Usage,
)
from dialog_engine.operators import commands
from dialog_engine.personal_data.retention import DAY_MS, Retention, one_pass
from dialog_engine.storage.usage import SHARDS, SqlUsage
from dialog_engine.wiring.engine import run_engine
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import new_id
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.integration.engines import Engine, Model, in_store, running_engine, settings
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import DIALECTS, EngineStore, opener
from tests.support.waiting import wait_until

TODAY = Wanted.between(None, None, datetime.now(UTC).date())
RAN = ToolOutcome(CallState.SUCCEEDED, attempts=1)
EXPIRED = ToolOutcome.failure(CallState.FAILED, ErrorCode.TIMEOUT, "no worker has started it")
PRICES = """
currency = "EUR"
[models."openai:a"]
input = 2
output = 10.5
[tools.demo__add]
call = 0.004
"""


async def counted(store: EngineStore, wanted: Wanted = TODAY) -> list[tuple[Any, ...]]:
    """The rows: the subject, the model or the tool, and the counts."""
    rows = map(astuple, await SqlUsage(store.database).page(wanted, None, 1000))
    return [(subject, model or tool, *counts) for _, subject, model, _, tool, *counts in rows]


def call(name: str = "demo__add") -> ToolCall:
    return ToolCall("call_1", new_id(), name, "{}")


async def one_round(store: EngineStore, turn: Turn, outcomes: dict[str, ToolOutcome], model: str = "") -> None:
    """A round of one call of each tool, which end so."""
    calls = {call(name): outcome for name, outcome in outcomes.items()}
    servers = {each.correlation_id: each.name.partition("__")[0] for each in calls}
    message = AssistantMessage("", tuple(calls))
    await store.calls.add_round(turn, message, [], {}, servers=servers, cost=Usage(100, 10), model=model)
    for each, outcome in calls.items():
        await store.calls.add_result(turn, each, outcome)


async def end(store: EngineStore, turn: Turn, *events: Any) -> None:
    draft = Draft.of(turn)
    for event in events:
        draft.follow(event)
    await store.turns.finish(turn, None, draft.done(turn.turn_id, DoneReason.STOP), None)


@promise("what was used by day, subject, model and tool is counted once, priced, and not kept by an erased name")
async def test_a_turn_counts_once_for_each_model_that_answered_and_for_the_tools_that_ran(store: EngineStore) -> None:
    turn = await begin(store.turns, "ann", None, "Hi")
    lost = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.LOST, "it may have run")
    await one_round(store, turn, {"demo__add": RAN, "demo__now": EXPIRED, "web__get": lost, "callstream__x": RAN})
    first, both = Usage(100, 10), Usage(160, 15, estimated=True)
    events = AnsweredBy("openai:a"), TokensSpent(first), AnsweredBy("openai:b"), StreamEnd(FinishReason.STOP, both)
    for _ in range(2):  # the answer to the first commit was lost
        await end(store, turn, *events)

    whole = [
        ("ann", "demo__add", 0, 0, 0, 0, 1),
        ("ann", "web__get", 0, 0, 0, 0, 1),
        ("ann", "openai:a", 0, 0, 100, 10, 0),
        ("ann", "openai:b", 1, 1, 60, 5, 0),
    ]
    assert await counted(store) == whole
    for filters, rows in (
        ({"model": "openai:b"}, whole[3:]), ({"tool": "web"}, whole[1:2]), ({"tool": "demo__add"}, whole[:1]),
        ({"subject": "an"}, []), ({"subject": "ann"}, whole),
    ):  # fmt: skip
        assert await counted(store, Wanted(TODAY.first, TODAY.last, **filters)) == rows
    assert await counted(store, Wanted(0, TODAY.last - 2)) == []


@promise("what was used by day, subject, model and tool is counted once, priced, and not kept by an erased name")
async def test_a_turn_of_a_killed_engine_counts_at_its_new_owner_only(store: EngineStore) -> None:
    turn, other = await begin(store.turns, "ann", None, "Hi"), EngineStore(store.database, "other")
    await store.engines.register(10_000)
    await one_round(store, turn, {"demo__add": RAN}, model="openai:a")
    assert await counted(store) == [], "nothing of a turn counts before its end"
    [adopted] = await other.engines.adopt(await other.seen(store), 9)
    with pytest.raises(TurnFencedError):
        await end(store, turn, AnsweredBy("openai:a"), StreamEnd(FinishReason.STOP, Usage(900, 90)))
    await end(other, adopted.turn, AnsweredBy("openai:b"), StreamEnd(FinishReason.STOP, Usage(150, 12)))
    refused = await begin(store.turns, "bob", None, "Hi")
    await one_round(store, refused, {}, model="openai:a")
    [adopted] = await other.engines.adopt(await other.seen(store), 9)
    await end(other, adopted.turn)  # without asking a model

    assert await counted(store) == [
        ("ann", "demo__add", 0, 0, 0, 0, 1),
        ("ann", "openai:a", 0, 0, 100, 10, 0),
        ("ann", "openai:b", 1, 0, 50, 2, 0),
        ("bob", "openai:a", 1, 0, 100, 10, 0),
    ]


@promise("what was used by day, subject, model and tool is counted once, priced, and not kept by an erased name")
async def test_engines_that_count_at_once_lose_nothing_and_pages_have_every_row_once(store: EngineStore) -> None:
    engines = [EngineStore(store.database, f"engine-{number}") for number in range(SHARDS)]

    async def use(engine: EngineStore, number: int) -> None:
        turn = await begin(engine.turns, f"user-{number % 3}", None, "Hi")
        await one_round(engine, turn, {"demo__add": RAN, "demo__now": RAN})
        await end(engine, turn, AnsweredBy("openai:a"), StreamEnd(FinishReason.STOP, Usage(100, 10)))

    await asyncio.gather(*(use(engine, number) for number in range(6) for engine in engines))

    rows, page = list[Used](), list[Used]()
    while page := await SqlUsage(store.database).page(TODAY, rows[-1].key if rows else None, 2):
        rows += page
    assert [(each.subject, each.calls, each.turns, each.input_tokens) for each in rows] == [
        counts for user in range(3) for counts in
        ((f"user-{user}", 16, 0, 0), (f"user-{user}", 16, 0, 0), (f"user-{user}", 0, 16, 1600))
    ]  # fmt: skip


@promise("what was used by day, subject, model and tool is counted once, priced, and not kept by an erased name")
async def test_the_counts_outlive_sessions_and_an_erased_subject_is_not_among_them_by_name(store: EngineStore) -> None:
    for subject in ("ann", "bob", "ann" * 200):
        turn = await begin(store.turns, subject, None, "Hi")
        await end(store, turn, AnsweredBy("m"), StreamEnd(FinishReason.STOP, Usage(5, 1)))
    runs = await begin(store.turns, "ann", None, "Hi")
    await store.database.write(lambda tx: tx.execute("UPDATE sessions SET updated_at = now_ms() - $1", 9 * DAY_MS))
    await one_pass(Retention.of([("bob", 7), ("*", 0)]), store.erasures)
    before = [("ann", "m", 1, 0, 5, 1, 0), ("bob", "m", 1, 0, 5, 1, 0)]
    assert [row for row in await counted(store) if row[0] in ("ann", "bob")] == before

    await store.erasures.erase("ann" * 200)
    await store.erasures.erase("ann")
    assert await counted(store) == [("", "m", 2, 0, 10, 2, 0), before[1]]
    await end(store, runs, AnsweredBy("m"), StreamEnd(FinishReason.STOP, Usage(5, 1)))
    await store.erasures.delete("ann", runs.session_id)  # before an engine has come to it

    assert await counted(store) == [("", "m", 3, 0, 15, 3, 0), before[1]]


HOSTILE = '=HYPERLINK("http://x";"y")\n"'


@promise("what was used by day, subject, model and tool is counted once, priced, and not kept by an erased name")
async def test_operators_alone_see_it_by_the_api_and_the_command_with_prices(
    tmp_path: Path, redis_url: str, model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prices.toml").write_text(PRICES.replace("openai:a", "openai:gpt-4.1-mini"))
    _, key = add_key(tmp_path / "keys", "ops", [OPERATOR], None)
    options = {
        "api_keys": "ann:" + "a" * 40,
        "api_keys_file": tmp_path / "keys",
        "prices_file": tmp_path / "prices.toml",
    }
    configured = settings(tmp_path, redis_url, model.url, **options)
    async with opener("sqlite", configured.store.outbox_path, None)() as database:  # pyright: ignore[reportArgumentType]
        turn = await begin((other := EngineStore(database)).turns, HOSTILE, None, "Hi")
        await end(other, turn, AnsweredBy("b"), StreamEnd(FinishReason.STOP, Usage(1, 1)))
    async with running_engine(configured) as engine:
        engine.client.headers["authorization"] = "Bearer " + "a" * 40
        await engine.chat("Hello.")
        assert (await engine.client.get("/operators/usage")).status_code == 403
        engine.client.headers["authorization"] = f"Bearer {key}"
        answer = (await engine.client.get("/operators/usage?subject=ann")).json()
        [row] = answer.pop("usage")
        assert answer == {"from": answer["from"], "to": row["day"], "nextCursor": None}
        expected = {"subject": "ann", "turns": 1, "inputTokens": 7, "outputTokens": 3, "calls": 0, "tool": None}
        assert row | expected | {"cost": 0.000046, "currency": "EUR"} == row
        first = await engine.client.get("/operators/usage?limit=1&format=csv")
        assert "HYPERLINK" in first.text
        [after] = re.findall(r'^<(\?.*&after=.*)>; rel="next"$', first.headers["link"])
        second = await engine.client.get(f"/operators/usage{after}")
        assert table(first.text)[1][1:] == ["'" + HOSTILE, "b", "", "", "1", "0", "1", "1", "0", "", ""]
        assert table(second.text)[1][1:3] == ["ann", "openai:gpt-4.1-mini"]
        for wrong, field in (
            ("from=2026-02-30", "from"), ("from=9999-01-01", "from"), ("to=x", "to"), ("limit=1001", "limit"),
            ("after=x", "after"), ("subject=%00", "subject"), ("format=xml", "format"), ("by=day", "by"),
        ):  # fmt: skip
            refused = await engine.client.get(f"/operators/usage?{wrong}")
            assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)

        monkeypatch.setenv("OUTBOX_PATH", str(configured.store.outbox_path))
        monkeypatch.setenv("PRICES_FILE", str(tmp_path / "prices.toml"))
        shown = [await printed(capsys, form) for form in ("--csv", "--json", "--tool=")]
        assert shown[0] == "".join([first.text, second.text.partition("\r\n")[2]])
        assert json.loads(shown[1].splitlines()[1]) == row
        assert shown[2].splitlines()[-1] == "Together 0.000046 EUR; 1 rows have no price."
        assert len(shown[2].splitlines()) == 4, "no name makes a line"

    monkeypatch.setenv("OUTBOX_PATH", str(tmp_path / "none"))
    assert await asyncio.to_thread(commands.run, ["usage"]) == 2
    monkeypatch.setenv("PRICES_FILE", str(tmp_path / "keys"))
    assert await asyncio.to_thread(commands.run, ["usage"]) == 2
    assert re.search(r"OUTBOX_PATH .* cannot be read.*\n.*PRICES_FILE: .*keys: is not a file", capsys.readouterr().err)
    with pytest.raises(ConfigurationError, match=r"PRICES_FILE: .*: is not a file of prices"):
        async with run_engine(in_store(configured, prices_file=tmp_path / "keys"), asyncio.Event(), NoCredentials()):
            pass


@promise("what was used by day, subject, model and tool is counted once, priced, and not kept by an erased name")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_users_export_what_they_used_until_it_is_erased_and_what_cannot_be_read_is_503(
    dialect: str, request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, model: Model
) -> None:
    url = request.getfixturevalue("postgres_url") if dialect == "postgres" else None
    configured = settings(tmp_path, redis_url, model.url, database_url=url)
    async with opener(dialect, configured.store.outbox_path, request)() as database:
        turn = await begin((other := EngineStore(database)).turns, "ann", None, "Hi")
        await end(other, turn, AnsweredBy("b"), StreamEnd(FinishReason.STOP, Usage(1, 1)))
    async with running_engine(configured) as engine:
        await engine.chat("Hello.")
        session, used = map(json.loads, (await engine.client.get("/v1/me/data")).text.splitlines())
        assert len(session["turns"]) == 1
        [row] = used["usage"]
        assert row.items() >= {"subject": "local", "turns": 1, "inputTokens": 7, "outputTokens": 3, "calls": 0}.items()
        await engine.client.delete("/v1/me/data")
        await wait_until(lambda: nothing_exported(engine), what="the end of the erasure")

        with closing(psycopg.connect(url) if url else sqlite3.connect(configured.store.outbox_path)) as connection:
            connection.execute("ALTER TABLE usage RENAME TO elsewhere")
            connection.commit()
        for path in ("/v1/me/data", "/operators/usage"):
            away = await engine.client.get(path)
            assert (away.status_code, away.json()["code"]) == (503, "STORAGE_UNAVAILABLE")
            assert re.search("cannot be (read|used now)", away.json()["detail"])


async def nothing_exported(engine: Engine) -> bool:
    return not (await engine.client.get("/v1/me/data")).text


async def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert await asyncio.to_thread(commands.run, ["usage", *argv]) == 0
    return capsys.readouterr().out


def table(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("", "has no `currency`"),
        ('currency = "euro"', r"\$.currency"),
        ('currency = "EUR"\n[models.a]\ninput = 1', "missing required field `output` - at `\\$.models"),
        ('currency = "EUR"\n[models.a]\ninput = 1\noutput = "x"', r"\$.models\[...\].output"),
        ('currency = "EUR"\n[models.a]\ninput = -1\noutput = 1', "models.'a'.input is -1: it must be 0 or more"),
        ('currency = "EUR"\n[tools.a]\ncall = nan', "tools.'a'.call is NaN"),
        ('currency = "EUR"\n[tools.a]\ncall = inf', "tools.'a'.call is Infinity"),
        ('currency = "EUR"\n[tool.a]\ncall = 1', "unknown field `tool`"),
        ("currency", "is not a file of prices"),
    ],
)
def test_what_is_wrong_in_a_file_of_prices_is_named(line: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_prices(line.encode())


def test_costs_are_exact_and_what_has_no_price_has_no_cost() -> None:
    prices = read_prices(PRICES.encode())

    def used(model: str = "", tool: str = "") -> Used:
        return Used(0, "ann", model, "demo" if tool else "", tool, 1, 0, 1_000_001, 3, 3)

    assert [str(prices.cost(used("openai:a"))), str(prices.cost(used(tool="demo__add")))] == ["2.000034", "0.012000"]
    assert [prices.cost(used("openai:c")), prices.cost(used(tool="x")), prices.cost(used())] == [None] * 3


@promise("what was used by day, subject, model and tool is counted once, priced, and not kept by an erased name")
@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\t", "\r", "\n", "\uff1d"])
def test_no_name_is_a_formula_in_a_spreadsheet(start: str) -> None:
    [row] = table(
        as_csv([Used(0, f"{start}1+1", "m", "", "", 1, 0, 1, 1, 0)], read_prices(PRICES.encode()), head=False)
    )
    assert row[1] == f"'{start}1+1"


def test_days_are_whole_and_in_order() -> None:
    assert Wanted.between(None, None, date(1970, 2, 1)) == Wanted(2, 31)
    assert Wanted.between(None, date.min, date(1970, 2, 1)).first == Wanted.between(None, date.min, date.min).last
    with pytest.raises(ValueError, match="the subject has no name"):
        Wanted.ever("")
    with pytest.raises(ValueError, match="from is 1970-01-02, which is later than to, 1970-01-01: exchange them"):
        Wanted.between(date(1970, 1, 2), date(1970, 1, 1), date.max)
