"""How servers say that a model takes no tools. Pure."""

import re

from dialog_engine.errors import LLMError, LLMToolsRejectedError

_ABOUT_TOOLS = re.compile(r"\b(?:tools?|tool_(?:choice|use)|functions|function[ _-]call(?:s|ing)?)\b", re.IGNORECASE)
_NOT_TAKEN = re.compile(
    r"(?:n[o']t|un)[ -]?(?:be )?(?:currently )?"
    r"(?:support|allow|enabled|permit|available|implement|recogni|compatible|have|used)"
    r"|lacks|cannot use|only (?:be )?supported (?:by|with)|(?:unknown|invalid) (?:parameter|field|argument)"
    r"|no endpoints found|requires? --|disabled",
    re.IGNORECASE,
)
_ABOUT_ONE = re.compile(
    r"schema|\[\d|parallel|role|tool (?:message|result|response|output)|too (?:long|many)|maximum", re.IGNORECASE
)
_FIELD = re.compile(r"'body', 'tools'\]")


def tools_rejected(status: int, words: str) -> type[LLMError] | None:
    """The kind of a failure with that status and these words of the provider, if it takes no tools at all.

    A complaint about one tool, its schema or a message is another. Some servers answer 500 for what they cannot do.
    """
    if status not in (400, 404, 405, 422, 500, 501):
        return None
    plain = _ABOUT_TOOLS.search(words) and _NOT_TAKEN.search(words) and not _ABOUT_ONE.search(words)
    return LLMToolsRejectedError if plain or _FIELD.search(words) else None
