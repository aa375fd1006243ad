"""What servers may ask people, what fits their forms, and the rounds of a call on the wire."""

from typing import Any

import msgspec
import pytest

from callstream_runtime.encryption_keys import cipher_of
from dialog_engine.model import QuestionStatus, ToolCall
from dialog_engine.tool_calls.questions.rules import filled, lost, next_request
from dialog_engine.tool_calls.questions.values import Answer, AskedRound, Asking
from plugins_contract.encryption import CLEAR, open_request, seal_request
from plugins_contract.keys import Keys
from plugins_contract.messages import (
    ROUND_VERSION,
    ExecutionClass,
    ToolCallRequested,
    UnsupportedEventError,
    approve,
    arguments_hash,
    decode_request,
    encode_request,
    is_approved,
)
from plugins_contract.outcomes import CallState
from plugins_contract.questions import (
    SECRET_WORDS,
    InputRequired,
    NextRound,
    QuestionKind,
    ServerQuestion,
    call_of_round,
    round_id,
    unfit,
)
from tests.marks import promise
from tests.support.handling import delivery
from tests.support.processes import ROOT

REQUEST = delivery().request
BRINGS = NextRound(2, {"when": {"action": "accept", "content": {"day": "2026-11-26"}}}, "opaque")


def asked(**field: Any) -> InputRequired:
    form = {"type": "object", "properties": {"field": field}}
    return InputRequired((ServerQuestion("k", QuestionKind.FORM, "Well?", form=form),), "state")


def address(url: str) -> InputRequired:
    return InputRequired((ServerQuestion("k", QuestionKind.URL, "Look", url=url),))


@pytest.mark.parametrize(
    "field",
    [
        {"type": "string"},
        {"type": "string", "format": "email", "minLength": 3, "maxLength": 90, "default": "a@b.example"},
        {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
        {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
        {"type": "integer", "minimum": 1},
        {"type": "number", "maximum": 1.5},
        {"type": "boolean", "default": True},
        {"type": "array", "items": {"type": "string", "enum": ["a"]}, "minItems": 1},
        {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
    ],
)
def test_a_flat_form_is_put_to_a_person(field: dict[str, Any]) -> None:
    assert unfit(asked(**field)) is None


@promise("a server's question that is unfit, nested or asks for a secret in a form is put to nobody")
@pytest.mark.parametrize(
    "field",
    [
        {"type": "object", "properties": {}},
        {"type": "array", "items": {"type": "string"}},
        {"type": "string", "enum": [1]},
        {"type": "string", "format": "regex"},
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "string", "minLength": -1},
        {"type": "integer", "minimum": "1"},
        {"type": ["string", "null"]},
        {"$ref": "#/definitions/x"},
        {},
        {"type": "string", "format": "password"},
        {"type": "string", "title": "API-Key"},
        {"type": "string", "title": "Your pass_word please"},
        {"type": "string", "title": "PIN"},
    ],
)
def test_a_form_that_nobody_is_asked(field: dict[str, Any]) -> None:
    assert unfit(asked(**field))


@promise("a server's question that is unfit, nested or asks for a secret in a form is put to nobody")
@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", "http://example.com", "https://", "data:text/html,x", "https://localhost/", "https://a/",
        "https://127.0.0.1/", "https://[::1]/", "https://10.1.2.3/", "https://169.254.169.254/", "https://0x7f.1/",
        "https://2130706433/", "https://user@example.com/", "https://db.internal/", "https://example.com/\nx",
        "https://printer.local./", "https://[",
    ],
)  # fmt: skip
def test_an_address_that_nobody_is_sent_to(url: str) -> None:
    assert unfit(address(url))
    assert unfit(address("https://example.com/form?x=1")) is None


@promise("a server sends people to public addresses, and to the hosts that its operator lists, only")
@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://forms.internal/x", True),
        ("http://127.0.0.1:8080/x", True),
        ("https://FORMS.internal./x", True),
        ("http://127.0.0.1/x", False),
        ("https://forms.internal:8443/x", False),
        ("https://me@forms.internal/x", False),
        ("javascript://forms.internal/%0aalert(1)", False),
        ("http://example.com/", False),
        ("https://example.com:99999/", False),
    ],
)
def test_an_operator_lists_hosts_that_are_not_public(url: str, fits: bool) -> None:
    assert (unfit(address(url), {"forms.internal", "127.0.0.1:8080"}) is None) == fits


def test_more_than_ten_questions_at_once_are_refused() -> None:
    [question] = asked(type="string").questions
    assert unfit(InputRequired((question,) * 10)) is None
    assert unfit(InputRequired((question,) * 11))


def following(**changes: Any) -> ToolCallRequested:
    changed = {"correlation_id": round_id(REQUEST.correlation_id, 2), "event_version": ROUND_VERSION, **changes}
    return msgspec.structs.replace(REQUEST, next_round=BRINGS, may_ask=True, **changed)


def test_a_round_has_an_entry_of_its_own() -> None:
    request = following()
    assert Keys().call(request.correlation_id) == f"plugins.calls:{REQUEST.correlation_id}:2"
    assert call_of_round(request.correlation_id) == call_of_round(REQUEST.correlation_id) == REQUEST.correlation_id
    assert round_id(REQUEST.correlation_id, 1) == REQUEST.correlation_id
    assert decode_request(encode_request(request)) == request
    assert arguments_hash(request) != arguments_hash(REQUEST)
    assert is_approved(approve(request, "ada"))
    assert not is_approved(msgspec.structs.replace(request, approved=approve(REQUEST, "ada").approved))


@promise("a worker of an earlier release never runs a round of a call as a call of its own")
@pytest.mark.parametrize("version", [1, 2])
def test_a_round_has_a_version_that_earlier_releases_refuse(version: int) -> None:
    fields = msgspec.json.decode(encode_request(following())) | {"eventVersion": version}
    with pytest.raises(UnsupportedEventError, match="nextRound"):
        decode_request(msgspec.json.encode(fields))
    with pytest.raises(UnsupportedEventError, match="nextRound"):
        decode_request(msgspec.json.encode(msgspec.json.decode(encode_request(REQUEST)) | {"eventVersion": 3}))


@promise("answers to forms and a server's state are nowhere in clear where encryption is on")
def test_what_a_round_brings_is_sealed_with_its_arguments() -> None:
    cipher = cipher_of(["s" * 64])
    sealed = seal_request(following(), cipher)
    data = encode_request(sealed)

    assert b"opaque" not in data
    assert b"2026-11-26" not in data
    opened = open_request(decode_request(data), cipher)
    assert (opened.next_round, opened.arguments) == (BRINGS, REQUEST.arguments)
    assert encode_request(opened) == data, "an opened request is never encoded in clear"


def test_the_page_about_servers_lists_what_is_taken_for_a_secret() -> None:
    page = (ROOT / "docs" / "mcp.md").read_text()
    assert [word for word in SECRET_WORDS if f"`{word}`" not in page] == []


# --- What fits a form of a server, and the request of the next round ---


def problem(field: dict[str, Any], value: Any, *, required: bool = False) -> str:
    form = {"type": "object", "properties": {"f": field}, "required": ["f"] if required else []}
    content = {} if value is None else {"f": value}
    return filled(ServerQuestion("k", QuestionKind.FORM, "?", form=form), content)[1].get("f", "")


TEXT = {"type": "string"}
SEVERAL = {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 2}


@promise("an answer to a server's form that does not fit is refused by field")
@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        (TEXT, ["", "x" * 10_000], [1, True, ["x"], "x" * 10_001]),
        (TEXT | {"minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
        (TEXT | {"format": "email"}, ["a@b", "a.b+c@d.example"], ["a", "a@", "a b@c", "@" * 9_999, "a@b."]),
        (TEXT | {"format": "uri"}, ["https://example.com/x", "urn:x:y"], ["example", "https://a b", "https://["]),
        (TEXT | {"format": "date"}, ["2026-02-28"], ["2026-02-30", "28.2.2026", "20260228", "2026-W09-6"]),
        (TEXT | {"format": "date-time"}, ["2026-02-28T10:00:00Z", "2026-02-28T10:00:00.5+01:00"], ["2026-02-28", "x"]),
        (TEXT | {"enum": ["a", "b"]}, ["a"], ["c", ""]),
        (TEXT | {"oneOf": [{"const": "a", "title": "A"}]}, ["a"], ["A"]),
        ({"type": "integer", "minimum": 1, "maximum": 4}, [1, 4, 2.0], [0, 5, 1.5, True, "1", float("nan")]),
        ({"type": "number"}, [1, 1.5], [float("inf"), "1"]),
        ({"type": "boolean"}, [True, False], [1, "true"]),
        (SEVERAL, [["a"], ["c", "a"]], [[], ["a", "b", "c"], ["d"], ["a", "a"], "a", [1]]),
    ],
)
def test_what_fits(field: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if problem(field, value)] == []
    assert [value for value in bad if not problem(field, value)] == []
    assert problem(field, None, required=True) == "is required"


def test_defaults_are_filled_in_and_what_the_form_does_not_have_is_refused() -> None:
    form = {"type": "object", "properties": {"a": TEXT | {"default": "x"}, "b": {"type": "integer", "default": 2}}}
    question = ServerQuestion("k", QuestionKind.FORM, "?", form=form)
    assert filled(question, {"b": 3}) == ({"a": "x", "b": 3}, {})
    assert filled(question, {"c": 1})[1] == {"c": "the form has no such field"}
    assert filled(ServerQuestion("k", QuestionKind.URL, "?", url="https://example.com"), {"c": 1})[1]


def test_the_next_round_is_the_same_call_once_with_the_answers_and_the_state() -> None:
    before = approve(delivery().request, "ada")
    asked = InputRequired(
        (ServerQuestion("a", QuestionKind.FORM, "?"), ServerQuestion("b", QuestionKind.URL, "?")), "opaque"
    )
    asking = Asking("demo", "add", asked, encode_request(before).decode(), 0, 9)
    answers = {1: Answer(QuestionStatus.ANSWERED, 1, {"x": 1}), 2: Answer(QuestionStatus.CANCELLED, 1)}
    request = next_request(asking, answers, cipher=CLEAR, deadline=77)

    assert request.correlation_id == f"{before.correlation_id}:2"
    assert request.response_channel.endswith(request.correlation_id)
    assert (request.execution_class, request.deadline, request.arguments) == (ExecutionClass.ONCE, 77, before.arguments)
    assert request.next_round
    assert request.next_round.state == "opaque"
    assert request.next_round.responses == {"a": {"action": "accept", "content": {"x": 1}}, "b": {"action": "cancel"}}
    assert is_approved(request)
    again = next_request(
        Asking("demo", "add", asked, encode_request(request).decode(), 0, 9), answers, cipher=CLEAR, deadline=1
    )
    assert again.correlation_id == f"{before.correlation_id}:3"


def test_a_call_that_was_open_runs_again_only_where_it_may() -> None:
    asked = InputRequired((ServerQuestion("a", QuestionKind.FORM, "?"),), holder="sessions-a")
    withdrawn = {1: Answer(QuestionStatus.WITHDRAWN, 1)}

    def asking(execution_class: ExecutionClass) -> Asking:
        request = msgspec.structs.replace(delivery().request, execution_class=execution_class)
        return Asking("demo", "add", asked, encode_request(request).decode(), 0, 9)

    once, repeatable = asking(ExecutionClass.ONCE), asking(ExecutionClass.REPEATABLE)
    ended = lost(once)
    assert ended is not None
    assert ended.state is CallState.UNKNOWN
    assert lost(repeatable) is None
    again = next_request(repeatable, withdrawn, cipher=CLEAR, deadline=1, again=True)
    assert again.next_round == NextRound(2), "the call from its beginning, at any worker"
    on = next_request(repeatable, withdrawn, cipher=CLEAR, deadline=1)
    assert on.next_round == NextRound(2, holder="sessions-a"), "without an answer"


def test_a_round_is_open_until_each_question_has_ended() -> None:
    asked = InputRequired((ServerQuestion("a", QuestionKind.FORM, "?"), ServerQuestion("b", QuestionKind.FORM, "?")))
    found = AskedRound(ToolCall("t", "c", "n", "{}"), 1, Asking("s", "t", asked, "{}", 0, 9))
    half = AskedRound(found.call, 1, found.asking, {1: Answer(QuestionStatus.DECLINED, 1)})
    assert (found.is_open, half.is_open) == (True, True)
    assert [step.status for step in half.steps(1, {})] == [QuestionStatus.DECLINED]
    assert half.question_id(2) == "c:1:2"
