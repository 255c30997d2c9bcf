"""Options from typed fields: parsing, help, errors, and the required form of every verb's module."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import KW_ONLY, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from onrig.hw.disarm import HELLO_TIMEOUT_S
from onrig.runtime.link.keys import LEARNER_FOLDER
from onrig.runtime.run_config import Port as PortSettings
from onrig.runtime.run_config import RunConfig
from onrig.tools import options as module
from onrig.tools.bench.loop.plan import Request
from onrig.tools.cli import all_verbs, main, summary
from onrig.tools.first_rig import templates
from onrig.tools.options import Config, Folder, Json, Overrides, Value, arguments_of, run_verb, verb_module
from onrig.tools.terminal import _SETTING_NAMES
from tests.tools.test_cli import HEAVY_PACKAGES


@dataclass(frozen=True)
class Options:
    config: Config
    """Where to begin."""
    others: tuple[Config, ...] = ()
    _: KW_ONLY
    kind: Literal["coarse", "fine"] = "coarse"
    """Kind of grid."""
    n: Annotated[int, Value("N")] = 10
    """Count of ``things``."""
    width_mm: float | None = None
    """Width in millimetres."""
    out: Folder | None = None
    set: Overrides = ()
    json: Json | None = None
    dry_run: bool = False
    """Do nothing."""


@pytest.fixture
def options_seen(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Options of an invented verb."""
    received: list[object] = []

    def run(options: object) -> int:
        received.append(options)
        return 7

    verb = types.ModuleType("example", "Do an example.\n\nOf ``code`` in a paragraph.")
    verb.__dict__.update(Options=Options, main=run)
    monkeypatch.setattr(module, "verb_module", lambda name: verb)
    return received


def test_fields_become_arguments_with_their_defaults(options_seen: list[object]) -> None:
    assert run_verb("example", ["pendulum"]) == 7
    assert options_seen == [Options("pendulum")]


def test_every_kind_of_value_is_parsed(options_seen: list[object]) -> None:
    words = "pendulum a b --kind fine --n 3 --width-mm 1e2 --out x/y --set a.b=c --set d=e --json --dry-run"
    run_verb("example", words.split())
    assert options_seen == [
        Options(
            "pendulum", ("a", "b"), kind="fine", n=3, width_mm=100.0, out=Path("x/y"), set=("a.b=c", "d=e"), json="-",
            dry_run=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "required: CONFIG"),
        ("p --n many", "--n: expected a whole number, got 'many'"),
        ("p --n 1.5", "--n: expected a whole number, got '1.5'"),
        ("p --width-mm wide", "--width-mm: expected a number, got 'wide'"),
        ("p --kind corse", "--kind: expected coarse or fine, got 'corse' (did you mean 'coarse'?)"),
        ("p --n", "--n needs a value"),
        ("p --dry-run=3", "--dry-run takes no value, got '3'"),
        ("p --dryrun", "unknown option --dryrun (did you mean '--dry-run'?)"),
        ("p --seed 3", "unknown option --seed; a setting is given as --set seed=3"),
        ("p --episodes=5", "unknown option --episodes; a setting is given as --set episodes=5"),
        ("p -x", "unknown option -x"),
    ],
)
def test_mistakes_are_reported_in_one_line_without_jargon(
    words: str, message: str, options_seen: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run_verb("example", words.split())
    assert left.value.code == 2
    assert capsys.readouterr().err == f"onrig example: {message}; see onrig example --help\n"
    assert options_seen == []


def test_the_help_comes_from_the_docstrings(options_seen: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_verb("example", ["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: onrig example CONFIG [CONFIG]... [--kind coarse|fine] [--n N]")
    for part in ("Do an example.\n\nOf code in a paragraph.", "Count of things (default: 10)", "--json [FILE]"):
        assert part in text


# -- every verb --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", all_verbs())
def test_every_verb_is_a_module_of_the_same_form(verb: str) -> None:
    module = verb_module(verb)
    assert is_dataclass(vars(module)["Options"])
    assert callable(module.main)
    assert summary(verb) == (module.__doc__ or "").strip().split("\n")[0].removesuffix(".")
    assert all(argument.help for argument in arguments_of(module.Options)), "a field without a docstring"


def test_the_same_option_has_the_same_form_everywhere() -> None:
    forms: dict[str, set[tuple[object, ...]]] = {}
    for verb in all_verbs():
        for a in arguments_of(verb_module(verb).Options):
            if not a.positional:
                forms.setdefault(a.flag, set()).add((a.value.metavar, a.type, a.is_repeatable, a.value.complete))
    ambiguous = {flag: forms_found for flag, forms_found in forms.items() if len(forms_found) > 1}
    assert set(ambiguous) == {
        "--only",  # cells of an experiment, rules of the protocol
        "--json",  # a benchmark also writes its figures to a file
        "--out",  # the file of a page, or the folder of results
        "--resume",  # the folder of a run, or whether, for an experiment
    }


@pytest.mark.parametrize("verb", all_verbs())
def test_no_help_imports_what_its_verb_needs(verb: str) -> None:
    code = (
        "import sys\nfrom onrig.tools.cli import main\n"
        f"try:\n    main({[*verb.split(), '--help']!r})\nexcept SystemExit:\n    pass\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(process.stderr.split()) & HEAVY_PACKAGES == set()


def test_defaults_written_out_in_the_help_match_the_code() -> None:
    disarm_options, keys_options = verb_module("disarm").Options("port"), verb_module("keys").Options(Path("K"))
    assert (disarm_options.baud, disarm_options.wait) == (PortSettings("").baud, HELLO_TIMEOUT_S)
    assert keys_options.learner == LEARNER_FOLDER
    assert verb_module("init").Options(Path("F")).plant in templates()
    loop = verb_module("bench loop").Options
    assert Request(**vars(loop())) == Request()


def test_the_listed_setting_names_are_settings() -> None:
    assert set(_SETTING_NAMES) <= {*RunConfig.__struct_fields__, "recipe"}


def test_an_option_in_place_of_a_configuration_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--web", "pendulum"])
    assert "'pendulum' is not a port; put the configuration first: onrig run pendulum --web" in capsys.readouterr().err


def test_an_annotation_that_is_not_an_argument_is_refused() -> None:
    @dataclass
    class WrongOptions:
        names: dict[str, str]

    with pytest.raises((TypeError, ValueError)):
        arguments_of(WrongOptions)
