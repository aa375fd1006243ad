"""The page has its own words for every code that the API can answer with."""

import importlib
import re
from collections.abc import Iterator

from dialog_engine.errors import EngineError
from plugins_contract.errors import ErrorCode
from plugins_contract.questions import SECRET_WORDS
from tests.support.processes import ROOT

ENGINE = ROOT / "services/dialog-engine"
PROBLEM = re.compile(r'roblem(?:Error)?\(\s*HTTPStatus\.\w+,\s*"([A-Z_]+)"')


def kinds(of: type[EngineError]) -> Iterator[type[EngineError]]:
    yield of
    for each in of.__subclasses__():
        yield from kinds(each)


def test_every_code_of_the_api_has_its_words_on_the_page() -> None:
    importlib.import_module("dialog_engine.wiring.services")  # so that all errors are known
    files = (ENGINE / "src/dialog_engine/http").glob("*.py")
    sources = [file.read_text() for file in files if file.name != "results.py"]  # which answers workers
    problems = {code for source in sources for code in PROBLEM.findall(source)}
    assert len(problems) >= 7
    words, effects = (ENGINE / "web/src/core/words.ts").read_text().split("const EFFECTS")
    known, of_calls = (set(re.findall(r'^  \["([A-Z_]+)", ', part, re.MULTILINE)) for part in (words, effects))
    assert known - {"UNREACHABLE"} == problems | {each.code for each in kinds(EngineError)}
    assert of_calls == set(ErrorCode)


def test_the_page_takes_the_same_fields_for_secrets_as_the_engine_does() -> None:
    forms = (ENGINE / "web/src/core/forms.ts").read_text()
    lists = re.findall(r"const SECRET_(?:WORDS|NAMES) = \[(.*?)\];", forms)
    assert [{*re.findall(r'"(\w+)"', each)} for each in lists] == [{*SECRET_WORDS}, {"pin", "otp", "token", "ssn"}]
