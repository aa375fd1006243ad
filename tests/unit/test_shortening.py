"""A long result is shortened to its head and tail. What is left out is counted, and can be read."""

from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.tool_calls.results.texts import model_text, shorten, user_text, whole_of
from plugins_contract.outcomes import CallState, ContentBlock, CutBlock, LinkBlock, MediaBlock, TextBlock, ToolOutcome
from tests.marks import promise

ID = "01a20195-a8fb-7eb4-aa2f-e6bd66e58d63"
IMAGE = MediaBlock("image/png", "AAAA")


def outcome(*content: ContentBlock) -> ToolOutcome:
    return ToolOutcome(CallState.SUCCEEDED, content)


def test_a_long_text_becomes_head_note_and_tail() -> None:
    text = "a" * 60 + "b" * 100 + "c" * 30
    shown, whole = shorten(outcome(TextBlock(text)), ID, 90)

    cut = CutBlock("66e58d63", 60, 100, 190)
    assert shown.content == (TextBlock("a" * 60), cut, TextBlock("c" * 30))
    assert shown.truncated
    assert whole is not None
    assert (whole.for_model, whole.user_text) == (text, text)


def test_a_cut_falls_between_lines_where_lines_are_short() -> None:
    text = "".join(f"line {number:03}\n" for number in range(100))
    shown, _ = shorten(outcome(TextBlock(text)), ID, 300)

    head, _, tail = shown.content
    assert isinstance(head, TextBlock)
    assert isinstance(tail, TextBlock)
    assert head.text == "".join(f"line {number:03}\n" for number in range(22))
    assert tail.text.startswith("line ")
    assert tail.text.endswith("line 099\n")


def test_images_are_kept_and_links_in_the_middle_are_left_out() -> None:
    link = LinkBlock("u:1", "n")
    blocks = (link, TextBlock("a" * 100), IMAGE, link, TextBlock("b" * 100), TextBlock("c" * 20), link)
    shown, _ = shorten(outcome(*blocks), ID, 60)

    assert [type(block) for block in shown.content] == [
        *(LinkBlock, TextBlock, CutBlock, MediaBlock, TextBlock, LinkBlock)
    ]


def test_text_for_the_user_only_is_bounded_and_not_sent_to_the_model() -> None:
    blocks = (TextBlock("for both"), TextBlock("u" * 1000, user_only=True))
    shown, whole = shorten(outcome(*blocks), ID, 100)

    assert model_text(shown) == "for both"
    assert user_text(shown) == "for both\n" + "u" * 100
    assert shown.truncated
    assert whole is not None
    assert whole.for_model == "for both"
    assert whole.user_text == "for both\n" + "u" * 1000


BLOCKS = st.one_of(
    st.builds(TextBlock, st.text(st.sampled_from("ab\nü\N{GRINNING FACE}"), max_size=80), st.booleans()),
    st.builds(LinkBlock, st.just("u:1"), st.text("n", max_size=8)),
    st.just(IMAGE),
)


@promise("large results are paged through with a tool")
@given(st.lists(BLOCKS, max_size=8), st.integers(20, 120))
def test_every_character_is_shown_or_counted_at_its_offset(content: list[ContentBlock], max_chars: int) -> None:
    long = outcome(*content)
    shown, whole = shorten(long, ID, max_chars)
    if whole is None:
        assert shown == long
        return

    assert whole == whole_of(long)
    assert shown.content.count(IMAGE) == content.count(IMAGE)
    for cut in (block for block in shown.content if isinstance(block, CutBlock)):
        left_out = whole.for_model[cut.offset : cut.offset + cut.characters]
        assert len(left_out) == cut.characters > 0
        assert cut.total == len(whole.for_model)
        head, _, tail = model_text(shown).partition("[… ")
        assert whole.for_model.startswith(head.rstrip("\n"))
        texts = [block.text for block in shown.content if isinstance(block, TextBlock) and not block.user_only]
        assert sum(map(len, texts)) <= max_chars
        assert tail
