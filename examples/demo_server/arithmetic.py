"""Evaluates arithmetic expressions without `eval`: only numbers and operators of the parsed expression are accepted."""

import ast
import math
import operator
from collections.abc import Callable

Number = int | float

MAX_LENGTH = 200
MAX_BITS = 4096


class ArithmeticExpressionError(ValueError):
    """The expression has no value; the message tells its author why."""


def evaluate(expression: str) -> Number:
    """The value of an expression of numbers, `+ - * / // % **` and parentheses.

    Raises ArithmeticExpressionError for anything else, and for values that are too large.
    """
    if len(expression) > MAX_LENGTH:
        raise ArithmeticExpressionError(f"the expression is longer than {MAX_LENGTH} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError:
        raise ArithmeticExpressionError(f"{expression!r} is not an arithmetic expression") from None
    except ZeroDivisionError:
        raise ArithmeticExpressionError("division by zero") from None
    except OverflowError:
        raise ArithmeticExpressionError("the value is too large") from None
    if not math.isfinite(value):
        raise ArithmeticExpressionError("the value is too large")
    return value


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left), _value(right)))
        case _:
            raise ArithmeticExpressionError("only numbers, + - * / // % ** and parentheses are allowed")


def _power(base: Number, exponent: Number) -> Number:
    # The size of the result is checked before it is computed, so that 9**9**9 costs nothing.
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise OverflowError
    result = base**exponent
    if isinstance(result, complex):
        raise ArithmeticExpressionError("the value is not a real number")
    return result


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError
    return value


_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
