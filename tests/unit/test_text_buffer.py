"""TextBuffer holds the text it was given, in little more memory than its characters take."""

import gc
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.sideband import TextBuffer


@given(st.lists(st.text(st.characters(), max_size=3), max_size=100))
def test_the_text_is_what_was_added(pieces: list[str]) -> None:
    text = TextBuffer()
    for piece in pieces:
        text.add(piece)
    assert str(text) == "".join(pieces)


def test_thousands_of_tokens_take_little_more_memory_than_their_characters() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        text = TextBuffer()
        for number in range(10_000):
            text.add(f"{number:06}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * len(str(text))
