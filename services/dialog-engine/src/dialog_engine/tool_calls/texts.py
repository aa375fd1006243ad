"""A result in words: those that the model reads, and those that the user does. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from plugins_contract.outcomes import ContentBlock, CutBlock, LinkBlock, MediaBlock, TextBlock, ToolOutcome

READ_RESULT = "read_result"
"""The tool that pages through what was left out."""


class WholeResult(msgspec.Struct, frozen=True):
    """All the text of a result that was cut. Offsets count in `for_model`; `for_user` is None when it is the same."""

    for_model: str
    for_user: str | None = None

    @property
    def shown(self) -> str:
        """What the user may see."""
        return self.for_model if self.for_user is None else self.for_user


def whole_of(outcome: ToolOutcome) -> WholeResult:
    """The texts of an outcome, as far as it has them."""
    ours, theirs = model_text(outcome), user_text(outcome)
    return WholeResult(ours, None if ours == theirs else theirs)


def model_text(outcome: ToolOutcome) -> str:
    """What the model reads of the content."""
    return "\n".join(text for _, text in model_parts(outcome.content))


def model_parts(content: Sequence[ContentBlock]) -> Iterator[tuple[int, str]]:
    """The positions of the blocks that the model is told of, each with the words for it."""
    for number, block in enumerate(content):
        match block:
            case CutBlock():
                yield number, _cut(block)
            case TextBlock(user_only=True) | MediaBlock(user_only=True) | LinkBlock(user_only=True):
                pass
            case TextBlock(text):
                yield number, text
            case MediaBlock():
                yield number, _media(block)
            case LinkBlock():
                yield number, _link(block)


def user_text(outcome: ToolOutcome) -> str:
    """What the user reads of the content; images and links are shown as such."""
    parts: list[str] = []
    for block in outcome.content:
        match block:
            case TextBlock(text):
                parts.append(text)
            case CutBlock(characters=characters, total=total):
                parts.append(f"[… {characters:,} of {total:,} characters left out …]")
            case MediaBlock() | LinkBlock():
                pass
    return "\n".join(parts)


def _cut(block: CutBlock) -> str:
    return (
        f"[… {block.characters:,} of {block.total:,} characters left out: call {READ_RESULT} with"
        f' id "{block.result_id}" and offset {block.offset} …]'
    )


def _media(block: MediaBlock) -> str:
    where = f" {block.uri}" if block.uri else ""
    if perceptible(block):
        return f"[{block.mime_type}{where}, shown to the user]"
    return f"[{block.mime_type}{where} of {block.size:,} bytes: the user can download it, you cannot read it]"


def perceptible(block: MediaBlock) -> bool:
    """Whether it is an image or a sound."""
    return block.mime_type.startswith(("image/", "audio/"))


def _link(block: LinkBlock) -> str:
    facts = [block.mime_type] if block.mime_type else []
    facts += [f"{block.size:,} bytes"] if block.size is not None else []
    about = f" ({', '.join(facts)})" if facts else ""
    described = f": {block.description}" if block.description else ""
    return f"[{block.title or block.name}]({block.uri}){about}{described}"
