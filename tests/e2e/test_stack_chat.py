"""The whole pair by HTTP: a question, tool calls through Redis to real MCP servers, and the answer."""

import re
from collections.abc import Generator

import pytest

from tests.marks import promise
from tests.support.stack import Said, Stack, running_stack
from tests.support.waiting import wait_until_blocking

RUN = ["pending", "queued", "succeeded"]


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    unreachable = {"type": "http", "url": "http://127.0.0.1:9/mcp"}
    undefined = {"command": "x", "env": {"KEY": "${NOBODY_HAS_SET_THIS}"}}
    config = {
        "mcpServers": {
            "time": {"command": "${PYTHON}", "args": ["-m", "mcp_server_time"], "callstream": {"trust": True}},
            "demo": {"type": "http", "url": "${DEMO_MCP_URL}", "callstream": {"trust": True}},
            "unreachable": unreachable,
            "undefined": undefined,
        }
    }
    with running_stack(start=False, forked=True, config=config, worker_env={"RESULT_MAX_BYTES": "409600"}) as stack:
        stack.redis.start()
        stack.start_demo()
        stack.start_model()
        stack.start_worker()
        stack.start_engine()
        stack.wait_for_tools("time", "demo")
        yield stack


@promise("the demo model makes two parallel calls for two cities")
def test_two_cities_are_asked_about_at_once_and_both_times_are_in_the_answer(stack: Stack) -> None:
    said = stack.ask("What time is it in Tokyo and in Paris?")
    assert said.quick_statuses("time__get_current_time") == [RUN, RUN]
    times = re.findall(r"\d\d:\d\d", said.text)
    assert len(times) >= 2
    assert "Tokyo" in said.text
    assert "Paris" in said.text
    for step in said.steps("time__get_current_time"):
        if step["status"] == "succeeded":
            (time,) = re.findall(r"T(\d\d:\d\d)", step["result"]["text"].split("datetime", 1)[1])[:1]
            assert time in said.text
    assert said.reason == "stop"
    assert said.events[-1].data["usage"]["outputTokens"] > 0
    assert [event.id for event in said.events] == sorted({event.id for event in said.events}, key=_position)


@promise("progress reaches the user")
def test_a_slow_job_reports_its_progress(stack: Stack) -> None:
    said = stack.ask("Run a slow job of 1 second in 4 steps")
    (statuses,) = said.statuses("demo__slow_job")
    assert statuses == ["pending", "queued", "running", "progress", "succeeded"]
    progress = [step for step in said.steps("demo__slow_job") if step["status"] == "progress"]
    assert progress[0]["total"] == 4
    assert progress[0]["message"].startswith("step ")
    assert [step["progress"] for step in progress] == sorted(step["progress"] for step in progress)


@promise("images reach the page as URLs")
def test_an_image_is_a_url_that_answers_with_the_picture(stack: Stack) -> None:
    said = stack.ask("Draw a sunset picture of 64 pixels")
    (media,) = said.steps("demo__draw")[-1]["result"]["media"]
    picture = stack.http.get(media["url"])
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/png")
    assert picture.content.startswith(b"\x89PNG")
    assert "sandbox" in picture.headers["content-security-policy"]


@promise("the user can see the whole of a result, as nothing but text")
def test_a_result_too_large_to_keep_says_how_much_is_gone(stack: Stack) -> None:
    said = stack.ask("Give me a large result of 600 KB")
    whole = stack.http.get(said.steps("demo__large_result")[-1]["result"]["textUrl"]).text
    assert "[… 204,800 of 614,400 bytes left out: the result is too large to keep, and they are gone …]" in whole
    assert 400 * 1024 < len(whole) < 401 * 1024


@promise("after the last round the model answers without tools")
def test_a_model_that_never_ends_is_stopped_by_the_limit_of_rounds(stack: Stack) -> None:
    said = stack.ask("Keep calling tools forever")
    assert len(said.controls("tools")) == 5
    assert said.reason == "max_rounds"
    assert "no tool is offered to me any more" in said.text


@promise("what users receive after a stop is what happened, whenever and wherever they press it")
@promise("stop reaches the MCP server")
def test_stop_during_a_slow_job_reaches_its_mcp_server(stack: Stack) -> None:
    with stack.asking("Run a slow job of 60 seconds with token stopped-1") as events:
        turn_id = next(events).data["turnId"]
        stack.wait_for_effect("stopped-1")
        assert stack.http.post(f"/v1/turns/{turn_id}/cancel").status_code == 202
        said = Said(tuple(events))
    assert said.quick_statuses("demo__slow_job") == [["pending", "queued", "cancelled"]]
    assert said.reason == "cancelled"
    wait_until_blocking(lambda: len(stack.effects("stopped-1")) == 2)
    assert [effect["status"] for effect in stack.effects("stopped-1")] == ["started", "cancelled"]


@promise("stop reaches the MCP server")
def test_the_last_reader_who_leaves_stops_a_slow_job_where_that_was_asked_for(stack: Stack) -> None:
    for word, token in (("continue", "left-2"), ("cancel", "left-1")):
        message = f"Run a slow job of 60 seconds with token {token}"
        with stack.asking(message, headers={"x-on-disconnect": word}) as events:
            next(events)
            stack.wait_for_effect(token)
    wait_until_blocking(lambda: len(stack.effects("left-1")) == 2, 60)
    assert [effect["status"] for effect in stack.effects("left-1")] == ["started", "cancelled"]
    assert [effect["status"] for effect in stack.effects("left-2")] == ["started"]


@promise("a tool with an invalid schema is left out, and the reason reported")
def test_an_unusable_server_says_why_and_the_others_work(stack: Stack) -> None:
    wait_until_blocking(lambda: stack.tools()["unreachable"]["state"] == "failed", 30)
    servers = stack.tools()
    assert servers["unreachable"]["error"]
    assert servers["undefined"]["state"] == "disabled"
    assert "NOBODY_HAS_SET_THIS" in servers["undefined"]["error"]
    assert servers["demo"]["state"] == servers["time"]["state"] == "ready"


def _position(event_id: str) -> tuple[int, ...]:
    return tuple(map(int, event_id.split("-")))
