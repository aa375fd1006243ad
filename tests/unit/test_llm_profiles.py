"""Which provider is spoken to how."""

import re

import pytest

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.profiles import PROFILES, profile_of
from tests.support.processes import ROOT


@pytest.mark.parametrize(
    ("url", "model", "name"),
    [
        ("https://api.openai.com/v1", "gpt-4.1-mini", "openai"),
        ("https://us.api.openai.com/v1", "gpt-4.1-mini", "openai"),
        ("https://me.openai.azure.com/openai/v1", "gpt-4.1", "openai"),
        ("https://notopenai.com/v1", "x", "generic"),
        ("https://api.mistral.ai/v1", "mistral-small", "mistral"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-flash", "gemini"),
        ("https://gateway.example/v1", "google/gemini-2.5-flash", "gemini"),
        ("https://gateway.example/v1", "deepseek/DeepSeek-R1", "deepseek"),
        ("https://api.groq.com/openai/v1", "deepseek-r1-distill", "groq"),
        ("http://localhost:11434/v1", "qwen3", "ollama"),
        ("http://localhost:1234/v1", "qwen3", "lmstudio"),
        ("http://localhost:8000/v1", "qwen3", "generic"),
        ("https://api.anthropic.com", "claude-haiku-4-5", "anthropic"),
        ("https://gateway.example/anthropic", "claude-haiku-4-5", "generic"),
    ],
)
def test_the_address_says_who_it_is_and_else_the_model(url: str, model: str, name: str) -> None:
    assert profile_of(url, model).name == name


def test_what_is_set_goes_first() -> None:
    assert profile_of("https://api.openai.com/v1", "gpt-4.1", "mistral") is PROFILES["mistral"]


def test_a_profile_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"LLM_PROFILE must be one of generic"):
        profile_of("https://api.openai.com/v1", "gpt-4.1", "x")


def test_the_example_of_the_settings_names_every_profile() -> None:
    [listed] = re.findall(r"((?:^# .*\n)+)# LLM_PROFILE=", (ROOT / ".env.example").read_text(), re.MULTILINE)

    assert PROFILES.keys() <= set(re.findall(r"\w+", listed))
