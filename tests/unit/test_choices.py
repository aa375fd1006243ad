"""What a request may choose."""

import pytest

from dialog_engine.http.problems import ProblemError
from dialog_engine.http.services import Choices
from tests.marks import promise

CHOICES = Choices("openai:a", ("openai:a", "anthropic:b"), ("auto", "native"))
ALONE = Choices("openai:a", ("openai:a",))


@promise("a message may ask for a model and a tool mode that are allowed, and for no other")
@pytest.mark.parametrize(
    ("choices", "model", "tool_mode", "field", "detail"),
    [
        (CHOICES, "b", None, "model", "model must be one of openai:a, anthropic:b"),
        (CHOICES, "", None, "model", "model must be one of openai:a, anthropic:b"),
        (ALONE, "anthropic:b", None, "model", "model must be one of openai:a"),
        (CHOICES, None, "xml", "toolMode", "toolMode must be one of auto, native"),
        (CHOICES, None, "", "toolMode", "toolMode must be one of auto, native"),
        (ALONE, None, "auto", "toolMode", "toolMode cannot be chosen: leave it out"),
    ],
)
def test_other_choices_are_refused_with_the_list_of_allowed_ones(
    choices: Choices, model: str | None, tool_mode: str | None, field: str, detail: str
) -> None:
    with pytest.raises(ProblemError) as refused:
        choices.made(model, tool_mode)
    assert (refused.value.status, refused.value.code, refused.value.detail) == (422, "CHOICE_NOT_ALLOWED", detail)
    assert refused.value.extra == {"errors": [{"field": field, "message": detail}]}


def test_model_labels_name_the_provider_only_to_tell_two_apart() -> None:
    assert CHOICES.labels() == {"openai:a": "a", "anthropic:b": "b"}
    assert Choices("openai:a", ("openai:a", "anthropic:a")).labels() == {
        "openai:a": "openai:a",
        "anthropic:a": "anthropic:a",
    }
    assert Choices("openai:a", ("openai:a", "anthropic:b"), (), "Ours").labels() == {
        "openai:a": "Ours",
        "anthropic:b": "b",
    }
