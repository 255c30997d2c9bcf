"""Documents: loading, overriding and converting values, and the places of problems."""

from __future__ import annotations

import copy
import enum
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.config.conversion import convert, convert_by_section, convert_sections
from onrig.runtime.config.document import MAX_BYTES, Document, load_document, override, parse_document, problem_at
from onrig.runtime.config.problem import ConfigError, Mark, Problem

EXPECTED_INTEGER = "expected a whole number, such as 10, got 'x'"
EXPECTED_NUMBER = "expected a number, such as 0.5, got 'x'"
EXPECTED_PAIR = "expected 2 values in brackets, such as [0, 0.5]"
EXPECTED_PACE = "expected one of lockstep, realtime, or settings in braces, such as {episode: 0, amplitude: 1}"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    episode: int
    amplitude: float


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ou", tag_field="process"):
    schedule: tuple[Step, ...] = ()
    gain: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class NoNoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="none", tag_field="process"):
    pass


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rate_hz: float
    pace: Literal["realtime", "lockstep"] | Step = "realtime"
    limits: dict[str, tuple[float, float]] = {}
    boxes: dict[str, Step] = {}
    names: dict[Colour, int] = {}
    colour: Colour = Colour.RED
    channel_map: list[list[int]] = msgspec.field(default_factory=list, name="channel-map")

    def __post_init__(self) -> None:
        if self.rate_hz <= 0:
            raise ValueError("rate_hz must be positive")


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rig: Rig
    explore: Noise | NoNoise
    seed: int = 0
    wait_s: float = msgspec.field(default=1.0, name="wait-s")

    def __post_init__(self) -> None:
        if self.seed > 99:
            raise ValueError("seed is too large")


TEXT = """\
rig:
  rate_hz: 50
explore:
  process: ou
  schedule:
    - {episode: 1, amplitude: 1}
    - {episode: 500, amplitude: 1e-1}
"""


def document(text: str = TEXT) -> Document:
    return parse_document(text, "run.yaml")


def raised_message(action: object, *args: object) -> str:
    assert callable(action)
    with pytest.raises(ConfigError) as error:
        action(*args)
    return str(error.value)


# --- loading ---------------------------------------------------------------------------------------


def test_a_valid_file_loads_and_converts(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT, encoding="utf-8")
    run = convert_by_section(load_document(path), Run)
    assert run == Run(Rig(50.0), Noise((Step(1, 1.0), Step(500, 0.1))))
    assert isinstance(run.rig.rate_hz, float)


def test_a_missing_file_is_reported_in_one_line_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert raised_message(load_document, path) == f"{path}:1:1: cannot be read: No such file or directory"
    assert "cannot be read: a directory, not a regular file" in raised_message(load_document, tmp_path)
    assert raised_message(load_document, "a\0b").endswith("cannot be read: a name with a NUL byte")


def test_invalid_utf_8_is_located(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("a: ü\nb: ".encode() + b"\xfc")
    assert raised_message(load_document, path) == f"{path}:2:4: not UTF-8: byte 0xfc"


def test_a_file_may_have_at_most_a_megabyte(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"a: 1\n#" + b"x" * (MAX_BYTES - 6))
    assert load_document(path).data == {"a": 1}
    path.write_bytes(b"a: 1\n#" + b"x" * (MAX_BYTES - 5))
    assert raised_message(load_document, path) == f"{path}:1:1: cannot be read: larger than 1 MiB"


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs an endless device")
def test_a_device_is_not_a_configuration() -> None:
    assert raised_message(load_document, "/dev/zero") == "/dev/zero:1:1: cannot be read: a device, not a regular file"


def test_an_empty_document_is_refused_and_null_is_accepted() -> None:
    assert raised_message(document, "# nothing\n") == "run.yaml:1:1: the document is empty"
    assert document("null").data is None


def test_config_error_can_be_copied() -> None:
    with pytest.raises(ConfigError) as error:
        document("a: 012")
    assert str(copy.copy(error.value)) == str(error.value)


# --- converting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{rate_hz: fast}", "1:16: expected a number, such as 0.5, got 'fast' at rig.rate_hz"),
        ("{rate_hz: true}", "1:16: expected a number, such as 0.5, got true at rig.rate_hz"),
        ("{rate_hz: '5'}", "1:16: expected a number, such as 5, got '5' at rig.rate_hz (remove the quotes)"),
        ("{rate_hz: }", "1:15: expected a number, such as 0.5, got nothing at rig.rate_hz"),
        ("[]", "1:6: expected settings in braces, such as {rate_hz: 0.5}, got [] at rig"),
        ("{}", "1:6: missing required field 'rate_hz' at rig"),
        ("{rate_hz: 1, Pace: x}", "1:19: unknown field 'Pace' at rig (did you mean 'pace'?)"),
        (
            "{rate_hz: 1, zzz: x}",
            "1:19: unknown field 'zzz' at rig (one of rate_hz, pace, limits, boxes, names, colour, channel-map)",
        ),
        ("{rate_hz: 1, pace: lockstp}", "1:25: invalid value 'lockstp' at rig.pace (did you mean 'lockstep'?)"),
        ("{rate_hz: 1, pace: 3}", f"1:25: {EXPECTED_PACE}, got 3 at rig.pace"),
        ("{rate_hz: 1, pace: {episode: 1}}", "1:25: missing required field 'amplitude' at rig.pace"),
        ("{rate_hz: 1, colour: green}", "1:27: invalid value 'green' at rig.colour (one of red, blue)"),
        (
            "{rate_hz: 1, channel-map: [[1], [2, x]]}",
            "1:42: expected a whole number, such as 10, got 'x' at rig.channel-map[1][1]",
        ),
        (
            "{rate_hz: 1, limits: {a: [0, 1], b: [0, x]}}",
            "1:46: expected a number, such as 0.5, got 'x' at rig.limits.b[1]",
        ),
        (
            "{rate_hz: 1, limits: {a: [0]}}",
            "1:31: expected 2 values in brackets, such as [0, 0.5], got [0] at rig.limits.a",
        ),
        (
            "{rate_hz: 1, boxes: {k: {episode: 1, amplitude: 1}, 'a.b [0]': {episode: 1, amplitude: x}}}",
            "1:93: expected a number, such as 0.5, got 'x' at rig.boxes['a.b [0]'].amplitude",
        ),
        (
            "{rate_hz: 1, boxes: {k: {episode: 1, amplitude: 1}, m: {episode: 1, amplitud: x}}}",
            "1:74: unknown field 'amplitud' at rig.boxes.m (did you mean 'amplitude'?)",
        ),
        (
            "{rate_hz: 1, names: {red: 1, bleu: 2}}",
            "1:35: invalid value 'bleu' at rig.names.bleu (did you mean 'blue'?)",
        ),
        ("{rate_hz: -1}", "1:6: rate_hz must be positive at rig"),
    ],
)
def test_a_mismatch_is_reported_at_its_place_with_its_path(text: str, message: str) -> None:
    assert raised_message(convert, document(f"rig: {text}"), ("rig",), Rig) == f"run.yaml:{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{process: noen}", "1:20: invalid value 'noen' at explore.process (did you mean 'none'?)"),
        ("{process: zz}", "1:20: invalid value 'zz' at explore.process (one of ou, none)"),
        ("{process: 1}", "1:20: expected one of ou, none, got 1 at explore.process"),
        ("{gain: 1}", "1:10: missing required field 'process' at explore (one of ou, none)"),
        ("{process: none, gain: 1}", "1:26: unknown field 'gain' at explore (only process)"),
        ("{process: ou, gian: 1}", "1:24: unknown field 'gian' at explore (did you mean 'gain'?)"),
        ("{process: ou, gain: 0}", "1:30: expected a positive number, got 0 at explore.gain"),
        (
            "{process: ou, schedule: [{episode: 1, amplitude: 1}, {episode: 2, amplitude: x}]}",
            "1:87: expected a number, such as 0.5, got 'x' at explore.schedule[1].amplitude",
        ),
    ],
)
def test_tagged_unions_are_reported_by_their_tags_and_the_fields_of_the_selected_one(text: str, message: str) -> None:
    doc = document(f"explore: {text}")
    assert raised_message(convert_sections, doc, {"explore": Noise | NoNoise}) == f"run.yaml:{message}"


def test_the_root_and_a_missing_path_can_be_converted_or_named() -> None:
    assert convert(document("[1, 2]"), (), tuple[float, float]) == (1.0, 2.0)
    assert (
        raised_message(convert, document("[1, x]"), (), list[int])
        == "run.yaml:1:5: expected a whole number, such as 10, got 'x' at [1]"
    )
    assert raised_message(convert, document("x"), (), int) == f"run.yaml:1:1: {EXPECTED_INTEGER}"
    assert raised_message(convert, document("a:\n  b: 1"), ("a", "c", 0), int) == "run.yaml:2:3: missing a.c[0]"


def test_a_key_that_resembles_msgspecs_notation_does_not_mislead() -> None:
    doc = document("rate_hz: 1\n'x` - at `$.y': 2\n'$[...]': 3\n")
    assert raised_message(convert, doc, (), Rig).startswith("run.yaml:")
    boxes = document("'[...]': {episode: 1, amplitude: 1}\n'.a`b': {episode: 1}\n")
    assert (
        raised_message(convert, boxes, (), dict[str, Step])
        == "run.yaml:2:9: missing required field 'amplitude' at ['.a`b']"
    )


def test_every_section_reports_its_first_problem_in_order_of_line() -> None:
    doc = document("sede: 3\nexplore: {process: ou, gain: x}\nrig:\n  rate_hz: x\n  pace: x\n")
    assert raised_message(convert_sections, doc, {"rig": Rig, "explore": Noise | NoNoise, "seed": int, "x": int}) == (
        "run.yaml:1:1: missing required key 'seed'\n"
        "run.yaml:1:1: missing required key 'x'\n"
        "run.yaml:1:1: unknown key 'sede' (did you mean 'seed'?)\n"
        "run.yaml:2:30: expected a number, such as 0.5, got 'x' at explore.gain\n"
        "run.yaml:4:12: expected a number, such as 0.5, got 'x' at rig.rate_hz"
    )


class Bounded(msgspec.Struct, forbid_unknown_fields=True):
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    above: Annotated[float, msgspec.Meta(gt=0, lt=2, description="where it is stable")] = 1.0
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    every: Annotated[int, msgspec.Meta(gt=0, le=4_000_000_000)] = 1
    points: tuple[tuple[Annotated[float, msgspec.Meta(ge=0)], int], ...] = ()
    colour: str = "red"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("share: 1.5", "expected 0 to 1, got 1.5 at a.share"),
        ("above: 0", "expected between 0 and 2, got 0 at a.above (where it is stable)"),
        ("count: 0", "expected at least 1, got 0 at a.count"),
        ("every: 0", "expected a positive number, got 0 at a.every"),
        ("every: 5000000000", "expected more than 0, at most 4000000000, got 5000000000 at a.every"),
        ("points: [[1, 1], [-0.5, 1]]", "expected 0 or more, got -0.5 at a.points[1][0]"),
    ],
)
def test_a_number_out_of_bounds_is_reported_with_the_bounds(text: str, message: str) -> None:
    assert raised_message(convert, document(f"a: {{{text}}}"), ("a",), Bounded).split(": ", 1)[1] == message


def test_all_problems_of_a_section_are_reported_at_once() -> None:
    doc = document("a: {share: 2, color: blue, points: [[-1, 1]], count: none, every: -1}")
    message = raised_message(convert, doc, ("a",), Bounded)
    assert [line.split(": ", 1)[1].split(" (")[0] for line in message.splitlines()] == [
        "expected 0 to 1, got 2 at a.share",
        "unknown field 'color' at a",
        "expected 0 or more, got -1 at a.points[0][0]",
        "expected a whole number, such as 10, or null, got 'none' at a.count",
        "expected a positive number, got -1 at a.every",
    ]


def test_missing_optional_sections_are_omitted() -> None:
    doc = document("seed: 3")
    assert convert_sections(doc, {"seed": int, "rig": Rig}, optional=["rig"]) == {"seed": 3}


def test_sections_must_be_mappings() -> None:
    message = raised_message(convert_sections, document("- 1"), {"a": int, "b": int})
    assert message == "run.yaml:1:1: expected settings, one per line (a, b), got [1]"


def test_a_struct_by_section_uses_its_defaults_names_and_check() -> None:
    assert convert_by_section(document(TEXT + "wait-s: 2\n"), Run).wait_s == 2.0
    assert "'wait_s' (did you mean 'wait-s'?)" in raised_message(
        convert_by_section, document(TEXT + "wait_s: 2\n"), Run
    )
    assert raised_message(convert_by_section, document("seed: 1"), Run) == (
        "run.yaml:1:1: missing required key 'explore'\nrun.yaml:1:1: missing required key 'rig'"
    )
    message = raised_message(convert_by_section, document(TEXT + "seed: 100\n"), Run)
    assert message == "run.yaml:1:1: seed is too large"


# --- overriding ------------------------------------------------------------------------------------


def test_an_override_replaces_one_value_and_leaves_the_old_document_unchanged() -> None:
    old = document()
    before = copy.deepcopy(old)
    new = override(old, "explore.schedule[1].amplitude=5e-1")
    run = convert_by_section(new, Run)
    assert isinstance(run.explore, Noise)
    assert run.explore.schedule == (Step(1, 1.0), Step(500, 0.5))
    assert old == before


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("a=1e-3", ("a",), 1e-3),
        ("a=on", ("a",), "on"),
        ("a=", ("a",), None),
        ("a = x = y ", ("a",), "x = y"),
        ("a=[1, {b: 2}]", ("a",), [1, {"b": 2}]),
        ("rig={rate_hz: 2}", ("rig",), {"rate_hz": 2}),
        ("rig.limits.u-x=[0, 1]", ("rig", "limits"), {"u-x": [0, 1]}),
        ("x.y.z=1", ("x",), {"y": {"z": 1}}),
        ("explore.schedule[0]=null", ("explore", "schedule", 0), None),
        ("void.seed=1", ("void",), {"seed": 1}),
    ],
)
def test_overrides_follow_the_rules_of_the_file(assignment: str, path: tuple[str | int, ...], value: object) -> None:
    new = override(document(TEXT + "void:\n"), assignment)
    assert convert(new, path, object) == value


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("seed", "expected PATH=VALUE, as in seed=1"),
        ("=1", "expected PATH=VALUE, as in seed=1"),
        ("a..b=1", "expected PATH=VALUE, as in seed=1"),
        ("a[-1]=1", "expected PATH=VALUE, as in seed=1"),
        ("[0]=1", "expected PATH=VALUE, as in seed=1"),
        ("a b=1", "expected PATH=VALUE, as in seed=1"),
        ("rig.rate_hz.x=1", "no setting 'x' to set: rig.rate_hz is 50"),
        ("explore.schedule.x=1", "no setting 'x' to set: explore.schedule is [{episode: 1, amplitude: 1}, {episode..."),
        ("explore.schedule[2]=1", "no item 2 to set: explore.schedule has 2 items"),
        ("rig[0]=1", "no item 0 to set: rig is {rate_hz: 50}"),
        ("rig.new[0]=1", "rig.new[0]: the list does not exist; set the complete list"),
        ("seed=012", "012 could be meant as octal: drop the leading zero, or quote it if it is text"),
        ("seed={a: 1, a: 2}", "duplicate key 'a', first used in line 1, column 2"),
        ("seed=[1", "while parsing a flow sequence (line 1): expected ',' or ']', but got '<stream end>'"),
        (".".join("a" * 40) + "=1", "nested more than 32 levels deep"),
    ],
)
def test_an_invalid_override_is_reported_with_its_text(assignment: str, message: str) -> None:
    assert raised_message(override, document(), assignment) == f"--set {assignment}:1:1: {message}"


def test_problems_with_overridden_values_point_to_the_override() -> None:
    new = override(document(), "explore.schedule[1]={episode: 2, amplitud: 1}")
    assert raised_message(convert_by_section, new, Run) == (
        "--set explore.schedule[1]={episode: 2, amplitud: 1}:1:1: "
        "unknown field 'amplitud' at explore.schedule[1] (did you mean 'amplitude'?)"
    )
    other_message = raised_message(convert_by_section, override(new, "explore.schedule[0].episode=x"), Run)
    assert (
        other_message == f"--set explore.schedule[0].episode=x:1:1: {EXPECTED_INTEGER} at explore.schedule[0].episode"
    )


def test_the_last_override_of_a_value_owns_it() -> None:
    doc = override(override(document(), "rig.rate_hz=x"), "rig={rate_hz: y}")
    assert raised_message(convert_by_section, doc, Run).startswith("--set rig={rate_hz: y}:1:1: expected a number")
    doc = override(override(document(), "rig={rate_hz: 1}"), "rig.rate_hz=z")
    assert raised_message(convert_by_section, doc, Run).startswith("--set rig.rate_hz=z:1:1: expected a number")
    assert problem_at(doc, ("rig",), "").file == "--set rig={rate_hz: 1}"


def test_problems_of_the_file_come_before_those_of_overrides() -> None:
    doc = override(document("a: x\nb: x\nc: x\n"), "b=y")
    files = [
        line.split(":")[0] for line in raised_message(convert_sections, doc, dict.fromkeys("abc", int)).splitlines()
    ]
    assert files == ["run.yaml", "run.yaml", "--set b=y"]


def test_an_override_may_name_another_origin() -> None:
    doc = override(document(), "rate_hz=x", origin="--set rig.rate_hz=x")
    assert problem_at(doc, ("rate_hz",), "m").file == "--set rig.rate_hz=x"


def test_a_document_that_is_null_can_be_given_its_first_value() -> None:
    doc = override(document("null"), "a.b=1")
    assert doc.data == {"a": {"b": 1}}
    assert str(problem_at(doc, ("a", "b"), "m")) == "--set a.b=1:1:1: m"


keys = st.sampled_from("abc")
trees = st.recursive(
    st.integers(0, 9),
    lambda inner: st.dictionaries(keys, inner, min_size=1, max_size=3) | st.lists(inner, min_size=1, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(st.dictionaries(keys, trees, min_size=1), st.data())
def test_an_override_of_any_existing_value_changes_only_that_value(
    tree: dict[str, object], data: st.DataObject
) -> None:
    doc = parse_document(msgspec.json.encode(tree).decode(), "run.yaml")
    path = data.draw(st.sampled_from(sorted((mark_path for mark_path in doc.marks if mark_path), key=str)))
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]
    new = override(doc, f"{text}=new")
    assert convert(new, path, object) == "new"
    restored = override(new, f"{text}={msgspec.json.encode(convert(doc, path, object)).decode()}")
    assert restored.data == doc.data
    assert restored.marks.keys() == doc.marks.keys()
    assert restored.key_marks.keys() == doc.key_marks.keys()


@settings(max_examples=200)
@given(st.text(max_size=20) | st.from_regex(r"[a-c.\[\]0-9]{1,8}=[ -~]{0,8}", fullmatch=True))
def test_no_assignment_raises_anything_but_config_error(assignment: str) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        override(document(), assignment)
    except ConfigError as error:
        problems = error.problems
    assert all(str(problem).isprintable() for problem in problems)


# --- problems found by users of documents ----------------------------------------------------------


def test_a_problem_at_a_missing_path_points_to_its_surroundings() -> None:
    doc = document()
    assert str(problem_at(doc, ("explore", "schedule", 1, "amplitude"), "m")) == "run.yaml:7:33: m"
    assert problem_at(doc, ("explore", "schedule", 5, "x"), "m").mark == Mark(6, 5)
    assert problem_at(doc, ("nowhere", "x"), "m").mark == Mark(1, 1)
    assert problem_at(doc, ("explore",), "m", at_key=True).mark == Mark(3, 1)
