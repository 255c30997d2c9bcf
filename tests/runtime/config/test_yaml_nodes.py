"""Strict reading of YAML: scalars, refusals, bounds, and writing it back."""

from __future__ import annotations

import math
import re

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onrig.runtime.config.problem import ConfigError, Mark, Problem
from onrig.runtime.config.yaml_nodes import MAX_DEPTH, MAX_NODES, Data, dump_yaml, read_tree


def parse(text: str) -> Data:
    tree = read_tree(text, "f.yaml")
    assert tree is not None
    return tree.data


def parse_error_message(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        read_tree(text, "f.yaml")
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.25", -0.25),
        ("+7", 7),
        ("-0", 0),
        ("0x1F", 31),
        ("0o17", 15),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2026-01-01", "2026-01-01"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("no", "no"),
        ("off", "off"),
        ("true", True),
        ("FALSE", False),
        ("tRUE", "tRUE"),
        ("null", None),
        ("~", None),
        ("", None),
        ("nan", "nan"),
        ("'1'", "1"),
        ('"null"', "null"),
        ("'.inf'", ".inf"),
        ("|\n  1e3\n", "1e3\n"),
        ('"\\U0001F600"', "\U0001f600"),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    data = parse(f"key: {text}")
    assert isinstance(data, dict)
    assert data["key"] == value
    assert type(data["key"]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 012", "f.yaml:1:4: 012 could be meant as octal: drop the leading zero, or quote it if it is text"),
        ("a: -007", "f.yaml:1:4: -007 could be meant as octal: drop the leading zero, or quote it if it is text"),
        ("a: .inf", "f.yaml:1:4: numbers must be finite, got .inf (quote it if it is text)"),
        ("a: -.Inf", "f.yaml:1:4: numbers must be finite, got -.Inf (quote it if it is text)"),
        ("a: .nan", "f.yaml:1:4: numbers must be finite, got .nan (quote it if it is text)"),
        ("a: 1e999", "f.yaml:1:4: numbers must be finite, and 1e999 is too large for a float"),
        ("a: 18446744073709551616", "f.yaml:1:4: integer does not fit into 64 bits"),
        ("a: " + "9" * 9999, "f.yaml:1:4: integer does not fit into 64 bits"),
        ("a: 0x" + "f" * 9999, "f.yaml:1:4: integer does not fit into 64 bits"),
        ('a: "\\ud800"', "f.yaml:1:4: \\ud800 to \\udfff are not characters: write \\U and eight digits"),
    ],
)
def test_ambiguous_or_unusable_scalars_are_refused_at_their_place(text: str, message: str) -> None:
    assert parse_error_message(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c: 2,\n    c: 3}", "f.yaml:3:5: duplicate key 'c', first used in line 2, column 5"),
        ("on: 1\n'on': 2", "f.yaml:2:1: duplicate key 'on', first used in line 1, column 1"),
        ("1: a", "f.yaml:1:1: a key must be text: quote it, '1'"),
        ("~: a", "f.yaml:1:1: a key must be text: quote it, '~'"),
        ("01: a", "f.yaml:1:1: a key must be text: quote it, '01'"),
        ("true: a", "f.yaml:1:1: a key must be text: quote it, 'true'"),
        ("[a]: b", "f.yaml:1:1: a key must be text, not a list or mapping"),
        ("a: &a {x: 1}\nb:\n  <<: *a", "f.yaml:3:3: merge keys (<<) are not part of YAML 1.2: write the keys out"),
    ],
)
def test_keys_must_be_text_and_unique(text: str, message: str) -> None:
    assert parse_error_message(text) == message


@pytest.mark.parametrize(
    ("tag", "displayed"),
    [
        ("!!python/object/apply:os.system", "!!python/object/apply:os.system"),
        ("!!str", "!!str"),
        ("!mine", "!mine"),
        ("!", "!"),
    ],
)
def test_tags_are_refused(tag: str, displayed: str) -> None:
    assert (
        parse_error_message(f"a: {tag} 12")
        == f"f.yaml:1:4: tags are not allowed, got {displayed} (quotes make a value text)"
    )


def test_all_problems_are_reported_together_in_order_of_line() -> None:
    lines = parse_error_message("a: 012\nb: !x 1\na: .inf\n2: x\n").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["f.yaml:1:4", "f.yaml:2:4", "f.yaml:3:1", "f.yaml:4:1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: [1,\nb",
            "f.yaml:2:2: while parsing a flow sequence (line 1): expected ',' or ']', but got '<stream end>'",
        ),
        (
            "a:\n\t- b",
            "f.yaml:2:1: a tab; indent and separate with spaces",
        ),
        ("a: b\n c: d", "f.yaml:2:3: a second ':' in a line, or a line indented too far"),
        ("a: *b", "f.yaml:1:4: found undefined alias 'b'"),
        (
            "a: 1\n---\nb: 2",
            "f.yaml:2:1: expected a single document in the stream (line 1): but found another document",
        ),
        ("a: 1\nb: x\x00", "f.yaml:2:5: character #x0000 is not allowed"),
        ("a: \ud800", "f.yaml:1:4: character #xd800 is not allowed"),
        ('a: "\\U00110000"', "f.yaml:1:7: a number is out of range here"),
        ("%YAML 1." + "9" * 5000 + "\n---\na: 1", "f.yaml:1:9: a number is out of range here"),
    ],
)
def test_syntax_errors_are_reported_in_one_line_with_their_place(text: str, message: str) -> None:
    assert parse_error_message(text) == message


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "\ufeff"])
def test_a_text_without_a_value_gives_nothing(text: str) -> None:
    assert read_tree(text, "f.yaml") is None


def test_marks_count_lines_and_columns_from_one() -> None:
    tree = read_tree("\ufeffa: 1\r\nü: [2, {c: 3}]\r\n", "f.yaml")
    assert tree is not None
    assert tree.marks == {
        (): Mark(1, 1),
        ("a",): Mark(1, 4),
        ("ü",): Mark(2, 4),
        ("ü", 0): Mark(2, 5),
        ("ü", 1): Mark(2, 8),
        ("ü", 1, "c"): Mark(2, 12),
    }
    assert tree.key_marks == {("a",): Mark(1, 1), ("ü",): Mark(2, 1), ("ü", 1, "c"): Mark(2, 9)}


def test_an_alias_gives_a_copy_located_at_its_anchor() -> None:
    tree = read_tree("a: &x [1]\nb: *x\n", "f.yaml")
    assert tree is not None
    assert isinstance(tree.data, dict)
    assert tree.data["a"] == tree.data["b"]
    assert tree.data["a"] is not tree.data["b"]
    assert tree.marks["b", 0] == Mark(1, 8)


def test_an_alias_of_its_own_container_is_refused() -> None:
    assert parse_error_message("a: &x [1, *x]") == "f.yaml:1:4: an alias refers to the value that contains it"


def test_aliases_of_aliases_cannot_fill_the_memory() -> None:
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert "more than 20000 values" in parse_error_message("\n".join(["a0: &a0 [1]", *levels]))


def test_the_number_of_values_is_bounded_even_without_aliases() -> None:
    assert parse("[" + "1," * (MAX_NODES - 1) + "]") == [1] * (MAX_NODES - 1)
    assert "more than 20000 values" in parse_error_message("[" + "1," * MAX_NODES + "]")


def test_depth_is_bounded_in_the_text_and_through_aliases() -> None:
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    assert "nested more than 32 levels deep" in parse_error_message("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))
    assert "nested more than 32 levels deep" in parse_error_message("{a: " * 100_000)
    chain = ["a0: &a0 []", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 40))]
    assert "nested more than 32 levels deep" in parse_error_message("\n".join(chain))


def test_messages_contain_neither_newlines_nor_terminal_escapes() -> None:
    message = parse_error_message('"a\\n\\e[31m": 1\n"a\\n\\e[31m": 2\n')
    assert message.isprintable()
    assert len(parse_error_message("a: 1." + "0" * 9999 + "e999")) < 500


def yaml_values(text: st.SearchStrategy[str]) -> st.SearchStrategy[object]:
    scalars = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | text
    )
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
    )


# Text for YAML 1.1, which leaves it unquoted, but a number for 1.2; a lone surrogate cannot be written at all.
portable_text = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda t: not re.match(r"[-+]?\.?[0-9]", t))
any_text = st.text(st.characters(exclude_categories=["Cs"])) | st.from_regex(r"[-+0-9.eExo]{1,6}", fullmatch=True)


def is_same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(is_same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@settings(max_examples=150)
@given(yaml_values(portable_text))
def test_output_of_safe_dump_reads_back_equal(data: object) -> None:
    assert is_same(parse(yaml.safe_dump({"data": data}, sort_keys=False)), {"data": data})


@settings(max_examples=150)
@given(yaml_values(any_text))
@example(["1e-3", "08", "1:30", "on", "~", "", "<<", "0o7", ".inf", "x\x85\u2028\ufeff\x1b\n ", 1e-5, 1e22])
@example(["\x85", "\u2028", "a\n\n b ", "\t", "µm °"])
@example({"1e3": {"null": 0}, "08": -0.0})
def test_output_of_dump_reads_back_equal_for_any_text(data: object) -> None:
    assert is_same(parse(dump_yaml({"data": data})), {"data": data})


def test_dump_keeps_order_and_writes_no_aliases() -> None:
    shared = [1.0, 2.0]
    assert dump_yaml({"b": shared, "a": shared, "c": (1,)}) == "b:\n- 1.0\n- 2.0\na:\n- 1.0\n- 2.0\nc:\n- 1\n"


yaml_like = st.lists(
    st.sampled_from(
        [*"ab01 \n\t:-?,[]{}#&*!|>'\"%@`~.<=+", "- ", ": ", "? ", "\n ", "\n- ", "&a ", "*a", "<<", "---\n"]
    )
    | st.sampled_from(["!!", "%YAML 1.2\n", "%TAG ! a:\n", "\\U0011", "\\xfg", '"\\', "|2\n", ">-\n", "...\n"])
    | st.characters(),
    max_size=40,
).map("".join)


@settings(max_examples=400)
@given(yaml_like | st.text())
def test_no_text_raises_anything_but_config_error(text: str) -> None:
    problems: tuple[Problem, ...] | None = None
    try:
        read_tree(text, "f.yaml")
    except ConfigError as error:
        problems = error.problems
    if problems is not None:
        assert problems
        assert all(str(problem).isprintable() for problem in problems)
        lines = len(re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text))
        assert all(1 <= problem.mark.line <= lines and problem.mark.column >= 1 for problem in problems)
