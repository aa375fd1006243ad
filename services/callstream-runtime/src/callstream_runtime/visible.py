"""Text for logs and terminals."""


def visible(text: str) -> str:
    """`text` with escapes for control characters and other invisible ones, which could forge lines of a log."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
