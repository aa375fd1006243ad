"""Which turn a question follows whose client sends the conversation again."""

import pytest

from dialog_engine.chat.resent import Found, Resent, bare, normalised, place_of
from dialog_engine.model import Brought, ClientCall, ClientMessage

STEPS = '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> so\n</details>\n'


def found(turn_id: str, answer: str = "Yes.", *, agrees: bool = True, whole: bool = True) -> Found:
    return Found("s", turn_id, agrees, whole, answer)


@pytest.mark.parametrize(
    ("named", "candidates", "answer", "place"),
    [
        (True, [found("new"), found("old")], "No.", "new"),
        (True, [found("new", "No."), found("old")], "Yes.", "old"),
        (True, [found("other", agrees=False), found("trimmed", whole=False)], None, "trimmed"),
        (True, [found("other", agrees=False)], "Yes.", None),
        (False, [found("somebody", "No."), found("mine")], "Yes.", "mine"),
        (False, [found("somebody", "No.")], "Yes.", None),
        (False, [found("somebody")], None, None),
        (False, [found("trimmed", whole=False)], "Yes.", None),
    ],
)
def test_a_named_conversation_is_known_by_its_questions_and_another_one_by_its_answer_too(
    named: bool, candidates: list[Found], answer: str | None, place: str | None
) -> None:
    follows = place_of(Resent(["Really?"], answer), candidates, named=named)
    assert (follows and follows.turn_id) == place


def test_white_space_and_the_steps_that_a_page_has_shown_make_no_difference() -> None:
    assert normalised(" a\u0301\n b ") == normalised("\u00e1 b")
    assert bare(f"{STEPS}Noon \nin Rome.{STEPS}") == bare("Noon in\nRome.") == "NooninRome."
    assert bare('a <details type="reasoning"') == 'a<detailstype="reasoning"'


def test_what_a_client_sends_again_is_its_questions_and_the_answer_to_the_last_of_them() -> None:
    said = (
        ClientMessage("user", "one"),
        ClientMessage("assistant", "first"),
        ClientMessage("user", "two"),
        ClientMessage("assistant", "Let me see. ", calls=(ClientCall("c", "t", "{}"),)),
        ClientMessage("tool", "42", call_id="c"),
        ClientMessage("assistant", "It is 42."),
    )
    assert Resent.of(Brought(said=said)) == Resent(["one", "two"], "Let me see. It is 42.")
    assert Resent.of(Brought(said=said[:3])) == Resent(["one", "two"], None)
