"""Arithmetic, written with operators or in words."""

import ast
import re

from examples.demo_model.conversation import Outcome
from examples.demo_model.results import parse
from examples.demo_model.skills.skill import Skill, Uses, quote
from examples.demo_model.toolbox import Toolbox

_SPOKEN = (
    (r"\b(?:add|sum of|sum)\s+(-?\d[\d.]*)\s*(?:and|to|,)\s*(-?\d[\d.]*)", r"\1 + \2"),
    (r"\bsubtract\s+(-?\d[\d.]*)\s+from\s+(-?\d[\d.]*)", r"\2 - \1"),
    (r"\bmultiply\s+(-?\d[\d.]*)\s+(?:by|and|with)\s+(-?\d[\d.]*)", r"\1 * \2"),
    (r"\bdivide\s+(-?\d[\d.]*)\s+by\s+(-?\d[\d.]*)", r"\1 / \2"),
    (r"\bplus\b", "+"),
    (r"\bminus\b", "-"),
    (r"\b(?:times|multiplied by)\b|\u00d7", "*"),
    (r"\bdivided by\b|\u00f7", "/"),
    (r"(?<=\d)\s*x\s*(?=\d)", " * "),
    (r"\^", "**"),
)
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_EXPRESSION = re.compile(r"[-(\d][\d\s.()+\-*/%]*[\d)]")
_SUM = re.compile(r"(-?[\d.]+)\s*\+\s*(-?[\d.]+)")


def expression_in(question: str) -> str | None:
    """The first arithmetic expression with an operator. Words such as "times" count as operators."""
    text = _DATE.sub(" ", question)
    for spoken, written in _SPOKEN:
        text = re.sub(spoken, written, text, flags=re.IGNORECASE)
    for match in _EXPRESSION.finditer(text):
        try:
            tree = ast.parse(match[0], mode="eval")
        except SyntaxError:
            continue
        if isinstance(tree.body, ast.BinOp):
            return match[0]
    return None


def _ask_arithmetic(question: str, tools: Toolbox) -> Uses:
    expression = expression_in(question)
    if expression is None:
        return []
    use = tools.use(("calculate", "calculator", "evaluate"), {"expression": expression})
    if use is None and (both := _SUM.fullmatch(expression)):
        use = tools.use(("add", "get_sum", "sum"), {"a": float(both[1]), "b": float(both[2])})
    return [use]


def _tell_arithmetic(outcome: Outcome, _: str) -> str:
    asked = outcome.arguments.get("expression") or " + ".join(map(str, outcome.arguments.values()))
    value = parse(outcome.text)
    return f"`{asked}` = **{value}**" if isinstance(value, int | float) else quote(outcome)


ARITHMETIC = Skill(
    "a calculator", ("calculate", "calculator", "evaluate", "add", "sum"), _ask_arithmetic, _tell_arithmetic
)
