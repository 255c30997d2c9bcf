"""Grammar of expressions: from text to a typed tree, with line and column in each error.

An expression consists of numbers, names, ``+ - * / **``, comparisons, ``and or not``, parentheses and the functions in
``FUNCTIONS``, with Python's precedence.  Each part is a number or a condition.  No text reaches Python's own compiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from onrig.runtime.config.problem import did_you_mean, format_choices
from onrig.runtime.expressions.tokens import ExpressionError, Token, error_at, tokenise

MAX_DEPTH: Final = 40
"""Maximum nesting of parentheses, function calls and signs."""
MAX_NODES: Final = 200
"""Maximum number of operations, names and numbers."""

_MAX_ARGUMENTS: Final = 8
FUNCTIONS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("abs", "sign", "sqrt", "exp", "log", "sin", "cos", "tan", "tanh"), (1, 1)),
    **dict.fromkeys(("hypot", "atan2"), (2, 2)),
    **dict.fromkeys(("min", "max"), (2, _MAX_ARGUMENTS)),
    **dict.fromkeys(("clip", "where"), (3, 3)),
}
"""Minimum and maximum number of arguments; the first argument of ``where`` is a condition."""
_CONSTANTS: Final = {"pi": math.pi}
_KEYWORDS: Final = ("and", "or", "not")

_COMPARISON_POWER: Final = 4
_BINARY_POWERS: Final = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), _COMPARISON_POWER),
    **dict.fromkeys("+-", 5),
    **dict.fromkeys("*/", 6),
    "**": 8,
}
_PREFIX_POWERS: Final = {"not": 3, "-": 7, "+": 7}
"""Binding powers: an operator takes operands that bind more tightly."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Node(NamedTuple):
    """One operation of an expression with its operands, or one of its leaves."""

    operation: str
    """``number``, ``name``, ``negative``, an operator, or a function's name."""
    operands: tuple[Node, ...] = ()
    value: float = 0.0
    """Value of a number; exponent of a power."""
    slot: int = -1
    """Index of a name in the list of allowed names."""
    is_condition: bool = False
    """Whether the node is a condition; otherwise it is a number."""


def parse(text: str, names: Sequence[str], *, condition: bool = False) -> Node:
    """Parse an expression over ``names`` that yields a number or, optionally, a condition.

    Raises ExpressionError.
    """
    return _Parser(text, names).parse(condition)


def expression_problems(text: str, names: Sequence[str], *, condition: bool = False) -> Iterator[tuple[str, str]]:
    """List the problem of an invalid expression as (path in its section, message)."""
    try:
        parse(text, names, condition=condition)
    except ExpressionError as error:
        yield "value", str(error)


def slots_of(node: Node) -> set[int]:
    """Return the slots of all names used in an expression."""
    return {node.slot}.difference({-1}).union(*map(slots_of, node.operands))


class _Parser:
    """Pratt parser of one expression."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self._text, self._names = text, names
        self._tokens = tokenise(text)
        self._index = self._depth = self._n_nodes = 0

    def parse(self, condition: bool) -> Node:
        start = self._token.offset
        node = self._expression(0)
        if self._token.kind != "end":
            raise self._error(f"expected an operator, got {self._token}")
        return self._check_kind(node, start, condition)

    @property
    def _token(self) -> Token:
        return self._tokens[self._index]

    def _take_token(self) -> Token:
        token = self._token
        self._index += 1
        return token

    def _expect(self, sign: str) -> None:
        if self._token[:2] != ("sign", sign):
            raise self._error(f"expected {sign!r}, got {self._token}")
        self._index += 1

    def _error(self, message: str, offset: int | None = None) -> ExpressionError:
        return error_at(self._text, self._token.offset if offset is None else offset, message)

    # -- grammar -------------------------------------------------------------------------------------------------------

    def _expression(self, minimum: int) -> Node:
        """Parse operators that bind at least as tightly as ``minimum``."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} levels deep")
        start = self._token.offset
        node = self._operand()
        while self._token.kind in ("sign", "word") and (power := _BINARY_POWERS.get(self._token.text, -1)) >= max(
            minimum, 0
        ):
            operator = self._take_token()
            if operator.text == "**":
                node = self._power(node, start, operator)
                continue
            right_offset = self._token.offset
            right = self._expression(power + 1)
            is_logical = operator.text in _KEYWORDS
            for operand, offset in ((node, start), (right, right_offset)):
                self._check_kind(operand, offset, is_logical)
            node = self._node(operator, (node, right), is_condition=is_logical or power == _COMPARISON_POWER)
            if power == _COMPARISON_POWER == _BINARY_POWERS.get(self._token.text):
                raise self._error("comparisons cannot be chained; join two of them with 'and'")
        self._depth -= 1
        return node

    def _power(self, base: Node, start: int, operator: Token) -> Node:
        exponent_offset = self._token.offset
        self._check_kind(base, start, False)
        exponent = _constant(self._check_kind(self._expression(_PREFIX_POWERS["-"]), exponent_offset, False))
        if exponent is None:
            raise self._error("the exponent must be a number: write x**y as exp(y * log(x))", exponent_offset)
        return self._node(operator, (base,), value=exponent)

    def _operand(self) -> Node:
        token = self._take_token()
        if token.kind == "number":
            value = float(token.text)
            if not math.isfinite(value):
                raise self._error(f"{token} is too large", token.offset)
            return self._node(token, value=value, operation="number")
        if token.kind == "quoted":
            return self._name(token)
        if token.text in _PREFIX_POWERS:
            operand_offset = self._token.offset
            is_not = token.text == "not"
            operand = self._check_kind(self._expression(_PREFIX_POWERS[token.text]), operand_offset, is_not)
            if token.text == "+":
                return operand
            if operand.operation == "number":
                return operand._replace(value=-operand.value)
            return self._node(token, (operand,), operation="not" if is_not else "negative", is_condition=is_not)
        if token.kind == "word" and token.text not in _KEYWORDS:
            return self._name_or_call(token)
        if token.text == "(":
            node = self._expression(0)
            self._expect(")")
            return node
        raise self._error(f"expected a number, a name or '(', got {token}", token.offset)

    def _name_or_call(self, token: Token) -> Node:
        if self._token[:2] == ("sign", "("):
            return self._call(token)
        if token.text in _CONSTANTS:
            return self._node(token, value=_CONSTANTS[token.text], operation="number")
        if token.text in FUNCTIONS and token.text not in self._names:
            raise self._error(f"{token.text} is a function; write {token.text}(...)", token.offset)
        return self._name(token)

    def _name(self, token: Token) -> Node:
        name = token.text
        if name not in self._names:
            quoted_names = [_quote_name(known_name) for known_name in self._names]
            suggestion, choices = did_you_mean(name, [*quoted_names, *_CONSTANTS]), format_choices(quoted_names)
            raise self._error(f"unknown name {token}, {suggestion or f'expected {choices}'}", token.offset)
        if self._names.count(name) > 1:
            raise self._error(f"{name!r} is both an observation and an actuator; rename one of them", token.offset)
        return self._node(token, operation="name", slot=self._names.index(name))

    def _call(self, function: Token) -> Node:
        name = function.text
        if name not in FUNCTIONS:
            suggestion = did_you_mean(name, FUNCTIONS) or f"expected {format_choices(list(FUNCTIONS))}"
            raise self._error(f"unknown function {function}, {suggestion}", function.offset)
        self._expect("(")
        arguments: list[Node] = []
        while not arguments or self._token[:2] == ("sign", ","):
            if arguments:
                self._expect(",")
            start = self._token.offset
            arguments.append(self._check_kind(self._expression(0), start, name == "where" and not arguments))
        minimum, maximum = FUNCTIONS[name]
        if not minimum <= len(arguments) <= maximum:
            expected = (
                f"{minimum} argument{'s' * (minimum > 1)}"
                if minimum == maximum
                else f"{minimum} to {maximum} arguments"
            )
            raise self._error(f"{name} takes {expected}, got {len(arguments)}", function.offset)
        self._expect(")")
        return self._node(function, tuple(arguments))

    # -- tree ----------------------------------------------------------------------------------------------------------

    def _node(
        self,
        token: Token,
        operands: tuple[Node, ...] = (),
        *,
        operation: str = "",
        value: float = 0.0,
        slot: int = -1,
        is_condition: bool = False,
    ) -> Node:
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES:
            raise self._error(f"expected at most {MAX_NODES} operations, names and numbers, got more", token.offset)
        return Node(operation or token.text, operands, value, slot, is_condition)

    def _check_kind(self, node: Node, offset: int, condition: bool) -> Node:
        """Return the node; raises ExpressionError if it is not a condition or number, as required."""
        if node.is_condition == condition:
            return node
        expected = "a condition, such as x > 1, got a number" if condition else "a number, got a condition"
        raise self._error(f"expected {expected}", offset)


def _quote_name(name: str) -> str:
    """Format a name as it is written in an expression, with backquotes if necessary."""
    return name if _PLAIN_NAME.fullmatch(name) and name not in (*_KEYWORDS, *_CONSTANTS) else f"`{name}`"


def _constant(node: Node) -> float | None:
    """Return the value of an exponent that is a number or a quotient of numbers; None for any other node."""
    if node.operation == "number":
        return node.value
    if node.operation == "negative":
        value = _constant(node.operands[0])
        return None if value is None else -value
    if node.operation == "/":
        numerator, denominator = map(_constant, node.operands)
        return numerator / denominator if numerator is not None and denominator else None
    return None
