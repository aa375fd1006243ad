"""How much of an answer is read, and of a result kept: it travels through Redis and stays in databases. Pure.

What is left out here is gone, so each place says how much that was.
"""

from collections.abc import Sequence

from plugins_contract.outcomes import ContentBlock, LinkBlock, MediaBlock, TextBlock

MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""A larger answer is not read to its end."""
MAX_MEDIA_BYTES = 4 * 1024 * 1024
"""All images, sounds and files of one outcome together, decoded."""
MAX_LINK_BYTES = 64 * 1024
"""All links of one outcome together, with what they say of themselves."""
MAX_BLOCKS = 1_000


def bounded(blocks: Sequence[ContentBlock], max_bytes: int) -> tuple[tuple[ContentBlock, ...], bool]:
    """The blocks within all bounds, and whether something is missing. `max_bytes` is for their text together."""
    few, fewer = _few(blocks)
    small, smaller = _small(few)
    fitted, shorter = _fit(small, max_bytes)
    return tuple(fitted), fewer or smaller or shorter


def _few(blocks: Sequence[ContentBlock]) -> tuple[Sequence[ContentBlock], bool]:
    if len(blocks) <= MAX_BLOCKS:
        return blocks, False
    note = TextBlock(f"[… {len(blocks) - MAX_BLOCKS:,} of {len(blocks):,} pieces left out: too many to keep …]")
    return [*blocks[:MAX_BLOCKS], note], True


def _small(blocks: Sequence[ContentBlock]) -> tuple[list[ContentBlock], bool]:
    """Media and links as far as there is room for them, and a note in the place of each other one."""
    kept: list[ContentBlock] = []
    media_room, link_room = MAX_MEDIA_BYTES, MAX_LINK_BYTES
    for block in blocks:
        match block:
            case MediaBlock(kind) if (size := block.size) > media_room:
                note = f"[{kind} of {size:,} bytes left out: too large to keep]"
                kept.append(TextBlock(note, block.user_only))
            case MediaBlock():
                media_room -= block.size
                kept.append(block)
            case LinkBlock(uri, name) if (size := _link_bytes(block)) > link_room:
                kept.append(TextBlock(f"[link {name[:200]} ({uri[:200]}) cut: too long to keep]", block.user_only))
            case LinkBlock():
                link_room -= _link_bytes(block)
                kept.append(block)
            case _:
                kept.append(block)
    return kept, any(type(ours) is not type(theirs) for ours, theirs in zip(kept, blocks, strict=True))


def _link_bytes(link: LinkBlock) -> int:
    return sum(len(each.encode()) for each in (link.uri, link.name, link.title or "", link.description or ""))


def _fit(blocks: Sequence[ContentBlock], max_bytes: int) -> tuple[list[ContentBlock], bool]:
    """The blocks with the middle of their text taken out, when all their text together is over `max_bytes`."""
    total = sum(len(block.text.encode()) for block in blocks if isinstance(block, TextBlock))
    if total <= max_bytes:
        return list(blocks), False
    head_ends, tail_begins = max_bytes // 2, total - (max_bytes - max_bytes // 2)
    fitted: list[ContentBlock] = []
    begins = 0
    noted = False
    for block in blocks:
        if not isinstance(block, TextBlock):
            fitted.append(block)
            continue
        data = block.text.encode()
        head, tail = data[: max(0, head_ends - begins)], data[max(0, tail_begins - begins) :]
        begins += len(data)
        if len(head) == len(data) or len(tail) == len(data):
            fitted.append(block)
            continue
        # A character cut in two is left out whole.
        parts = [head.decode("utf-8", "ignore"), tail.decode("utf-8", "ignore")]
        if not noted:
            gone = f"{tail_begins - head_ends:,} of {total:,} bytes left out"
            parts.insert(1, f"\n[… {gone}: the result is too large to keep, and they are gone …]\n")
            noted = True
        if text := "".join(parts):
            fitted.append(TextBlock(text, block.user_only))
    return fitted, True
