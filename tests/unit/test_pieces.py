"""Text in pieces: the text is right, and takes little more room than its characters."""

import gc
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.buffers import AT_ONCE, Pieces


@given(st.lists(st.text(max_size=3), max_size=3 * AT_ONCE))
def test_it_is_what_was_put_in(pieces: list[str]) -> None:
    text = Pieces()
    for piece in pieces:
        text.add(piece)
    assert str(text) == "".join(pieces)


def test_thousands_of_tokens_take_little_more_room_than_their_characters() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        text = Pieces()
        for number in range(10_000):
            text.add(f"{number:06}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * len(str(text))
