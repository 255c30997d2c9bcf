"""The grammar: what it accepts, and that hostile text is refused at its place, quickly and without being executed."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onrig.runtime.expressions.evaluation import compile_scalar
from onrig.runtime.expressions.syntax import (
    FUNCTIONS,
    MAX_DEPTH,
    MAX_NODES,
    Node,
    parse,
    slots_of,
)
from onrig.runtime.expressions.tokens import MAX_LENGTH, ExpressionError

NAMES = ["angle", "velocity", "coil-1", "previous_voltage"]
VALUES = (2.0, -3.0, 5.0, 0.5)


def value(text: str, *, condition: bool = False) -> object:
    return compile_scalar(parse(text, NAMES, condition=condition))(VALUES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7.0),
        ("(1 + 2) * 3", 9.0),
        ("10 - 4 - 3", 3.0),
        ("24 / 4 / 3", 2.0),
        ("-angle ** 2", -4.0),
        ("(-angle) ** 2", 4.0),
        ("angle ** -2", 0.25),
        ("angle ** (1/2)", 2.0**0.5),
        ("-velocity * -angle", -6.0),
        ("+velocity", -3.0),
        ("`coil-1` + previous_voltage", 5.5),
        ("where(velocity < 0, 1, 2) + where(not velocity < 0, 10, 20)", 21.0),
        ("clip(velocity, -1, 1) + min(angle, velocity, 7) + max(1, .5)", -3.0),
        ("abs(velocity) + sign(velocity) + sqrt(4e0)", 4.0),
        ("atan2(0, -1) - pi + hypot(3, 4)", 5.0),
        ("2 *\n  angle", 4.0),
    ],
)
def test_numbers(text: str, expected: float) -> None:
    assert value(text) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("angle > 1 and velocity < 0", True),
        ("angle > 3 or velocity >= -3 and angle == 2", True),
        ("(angle > 3 or velocity >= -3) and angle != 2", False),
        ("not angle > 3", True),
        ("not (angle > 1 or angle > 3)", False),
        ("angle + 1 <= 2 * velocity + 9", True),
    ],
)
def test_conditions(text: str, expected: bool) -> None:
    assert value(text, condition=True) is expected


REFUSED = [
    ("", 1, 1, "expected a number, a name or '(', got the end"),
    ("1 +", 1, 4, "got the end"),
    ("angle +\n  * 2", 2, 3, "expected a number, a name or '(', got '*'"),
    ("angel + 1", 1, 1, "unknown name 'angel', did you mean 'angle'?"),
    ("1 + q", 1, 5, "unknown name 'q', expected one of angle, velocity, `coil-1`, previous_voltage"),
    ("coil-1", 1, 1, "unknown name 'coil', did you mean '`coil-1`'?"),
    ("sn(angle)", 1, 1, "unknown function 'sn', did you mean 'sin'?"),
    ("2 * sin", 1, 5, "sin is a function; write sin(...)"),
    ("min(angle)", 1, 1, "min takes 2 to 8 arguments, got 1"),
    ("sin(angle, 1)", 1, 1, "sin takes 1 argument, got 2"),
    ("sin(angle", 1, 10, "expected ')', got the end"),
    ("angle ^ 2", 1, 7, "unexpected '^', write **"),
    ("angle = 2", 1, 7, "unexpected '=', write =="),
    ("angle & velocity", 1, 7, "unexpected '&', write and"),
    ("2 angle", 1, 3, "expected an operator, got 'angle'"),
    ("0 < angle < 1", 1, 11, "comparisons cannot be chained; join two of them with 'and'"),
    ("angle ** velocity", 1, 10, "the exponent must be a number"),
    ("angle ** (1/0)", 1, 10, "the exponent must be a number"),
    ("angle and velocity < 1", 1, 1, "expected a condition, such as x > 1, got a number"),
    ("1 + (angle < 1)", 1, 5, "expected a number, got a condition"),
    ("where(angle, 1, 2)", 1, 7, "expected a condition"),
    ("angle > 1", 1, 1, "expected a number, got a condition"),
    ("1e999", 1, 1, "'1e999' is too large"),
    ("(" * 60, 1, MAX_DEPTH + 1, f"nested more than {MAX_DEPTH} levels deep"),
    ("-" * 60 + "1", 1, MAX_DEPTH + 1, "nested more than"),
    ("1" + "+1" * MAX_NODES, 1, MAX_NODES, f"expected at most {MAX_NODES} operations"),
    (" " * MAX_LENGTH + "1", 1, MAX_LENGTH + 1, f"expected at most {MAX_LENGTH} characters"),
    ("__import__('os')", 1, 12, 'unexpected "\'"'),
    ("angle.__class__", 1, 6, "unexpected '.'"),
    ("angle if angle > 1 else 2", 1, 7, "expected an operator, got 'if'"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), REFUSED)
def test_problems_are_reported_with_line_and_column(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text, NAMES)
    assert str(error.value).startswith(f"line {line}, column {column} of the expression: ")
    assert message in str(error.value)


def test_a_number_is_not_a_condition() -> None:
    with pytest.raises(ExpressionError, match="expected a condition"):
        parse("angle", NAMES, condition=True)


def test_an_ambiguous_name_is_refused_where_it_is_used() -> None:
    assert parse("angle", ["voltage", "angle", "voltage"]).slot == 1
    with pytest.raises(ExpressionError, match=r"column 5 .*'voltage' is both an observation and an actuator"):
        parse("1 + voltage", ["voltage", "angle", "voltage"])


def test_words_of_the_language_may_be_names_in_backquotes() -> None:
    names = ["pi", "not", "1.x", "sin"]
    assert slots_of(parse("`pi` + `not` * `1.x`", names)) == {0, 1, 2}
    assert slots_of(parse("pi + sin + sin(1)", names)) == {3}


FRAGMENTS = st.sampled_from(
    [
        *(*NAMES, *FUNCTIONS, "and", "or", "not", "pi", "`coil-1`", "1", ".5", "2e3", "**", "<=", "=="),
        *(
            "__import__",
            "eval",
            "exec",
            "lambda:",
            "import os",
            "os.system('rm')",
            "\n",
            "\t",
            "\x00",
            "\u00b2",
            "\u0661",
        ),
        *"+-*/<>(),`.=!'\"\\;[]{}",
    ]
)
HOSTILE = (
    st.lists(FRAGMENTS, max_size=60).map(" ".join)
    | st.lists(FRAGMENTS, max_size=60).map("".join)
    | st.text(max_size=300)
    | st.text(string.printable, max_size=300)
    | st.sampled_from(["(", "-", "not ", "sin(", "where(angle < 1, ", "1+", "2**", "angle<", "`", "min(1,"]).flatmap(
        lambda part: st.integers(0, 3000).map(lambda n: part * n)
    )
)
POSITION_PATTERN = re.compile(r"line (\d+), column (\d+) of the expression: \S")


def refusal_message(text: str, condition: bool) -> str:
    """Message for a text that is not an expression; otherwise it is compiled."""
    try:
        node = parse(text, NAMES, condition=condition)
    except ExpressionError as error:
        return str(error)
    assert isinstance(node, Node)
    assert size(node) <= MAX_NODES
    compile_scalar(node)
    return ""


def assert_parsed_or_refused_at_its_place(text: str, condition: bool) -> None:
    if message := refusal_message(text, condition):
        position = POSITION_PATTERN.match(message)
        assert position is not None
        line, column = map(int, position.groups())
        lines = text[: MAX_LENGTH + 1].split("\n")
        assert 1 <= line <= len(lines)
        assert 1 <= column <= len(lines[line - 1]) + 1


def size(node: Node) -> int:
    return 1 + sum(map(size, node.operands))


@settings(max_examples=300)
@example("__import__('os').system('true')", False)
@given(HOSTILE, st.booleans())
def test_hostile_text_is_parsed_or_refused_at_its_place(text: str, condition: bool) -> None:
    assert_parsed_or_refused_at_its_place(text, condition)


@pytest.mark.study
@settings(max_examples=10_000)
@given(HOSTILE, st.booleans())
def test_ten_thousand_hostile_texts(text: str, condition: bool) -> None:
    assert_parsed_or_refused_at_its_place(text, condition)
