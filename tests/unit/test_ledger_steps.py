"""Scripts of the ledger read what their functions name, and nothing else."""

import re
from importlib.resources import files

import pytest

from plugins_contract import ledger
from plugins_contract.ledger import scripts, steps

TEXTS = {file.name.removesuffix(".lua"): file.read_text() for file in files(ledger).iterdir() if ".lua" in file.name}
SHARED = {"common", "letters", "loss", "sessions", "workers"}


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - SHARED))
def test_a_script_reads_each_key_and_argument_by_its_name(name: str) -> None:
    given = re.findall(r"^local (\w+) = .*(?:KEYS|ARGV)", scripts.load(name), re.MULTILINE)
    assert given
    assert len(given) == len(set(given))
    # A group of names is given as a whole, also to a script that needs some of them only.
    whole = {"call", "channel", "mailbox", "id", "tool_call_id", "requests", "entry", "consumer"}
    text = re.sub("--.*", "", TEXTS[name])
    assert [each for each in given if each not in whole and not re.search(rf"\b{each}\b", text)] == []
    assert not re.search("KEYS|ARGV", text)


def test_a_command_has_keys_and_arguments_in_the_order_of_their_names() -> None:
    held = scripts.Held("stream", "1-1", "worker")
    command = steps.release(lease_ms=3, held=held, fence=2, call="call")
    assert command == ("release", ["call", "stream"], ["1-1", "worker", 2, 3])
    assert steps.audit(requests="r", calls=["a", "b"], silent_ms=1, max_bytes=2).keys == ["r", "a", "b"]
