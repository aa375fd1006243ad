"""A number that makes no sense on a benchmark's command line is refused before anything is started."""

import argparse

import pytest

from benchmarks.arguments import at_least


@pytest.mark.parametrize(
    ("text", "words"),
    [("0", "--streams: must be 1 or more"), ("-3", "must be 1 or more"), ("x", "invalid number value")],
)
def test_what_makes_no_sense_is_refused(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=at_least(1))
    assert parser.parse_args(["--streams", "1"]).streams == 1
    with pytest.raises(SystemExit):
        parser.parse_args(["--streams", text])
    assert words in capsys.readouterr().err
