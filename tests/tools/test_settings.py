from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import inspect as types

from onrig.hw.bounds import NotNegative, Positive, Quantity, Share
from onrig.runtime.config.document import load_document, shipped_names
from onrig.runtime.config.yaml_nodes import Data
from onrig.runtime.exit_codes import ExitCode
from onrig.tools import settings
from onrig.tools.cli import main
from onrig.tools.fields import Section, _describe_type, sections_of_run
from onrig.tools.load import sections as owned_sections

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    return sections_of_run(owned_sections())


def test_the_page_matches_the_output_of_the_command() -> None:
    """In a separate process: here tests may have registered plugins from files."""
    command = [sys.executable, "-m", "onrig.tools.cli", "settings", "--markdown"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "settings.md").read_text() == output, "onrig settings --markdown > docs/settings.md"


def test_every_section_is_on_the_page_once(sections: list[Section]) -> None:
    titles = [(section.path, section.variant) for section in sections]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("run", shipped_names())
def test_every_setting_of_the_shipped_runs_is_on_the_page(run: str, sections: list[Section]) -> None:
    def check_keys(data: Data, path: str) -> None:
        if not isinstance(data, dict):
            return
        for key, value in data.items():
            key_path = f"{path}.{key}".removeprefix(".")
            sections_found = settings.sections_below(sections, key_path)
            assert sections_found, key_path
            if not any(f.name == key and "{NAME" in f.values for section in sections_found for f in section.fields):
                check_keys(value, key_path)

    document = load_document(ROOT / "configs" / f"{run}.yaml")
    check_keys(
        {k: v for k, v in document.data.items() if k != "recipe"} if isinstance(document.data, dict) else None, ""
    )


@pytest.mark.parametrize(
    ("type_", "words"),
    [
        (bool, "true | false"),
        (Quantity, "number"),
        (NotNegative, "number from 0"),
        (Positive, "number above 0"),
        (Share, "number 0 to 1"),
        (Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)], "number above 0, below 1"),
        (Annotated[int, msgspec.Meta(ge=50, le=20_000_000)], "whole number 50 to 20000000"),
        (Annotated[int, msgspec.Meta(ge=4, multiple_of=4)], "whole number from 4, multiple of 4"),
        (tuple[float, ...] | None, "[number, ...] | null"),
        (tuple[float, int], "[number, whole number]"),
        (dict[str, float], "{NAME: number}"),
    ],
)
def test_types_and_bounds_in_words(type_: type, words: str) -> None:
    assert _describe_type(types.type_info(type_)) == words


def test_a_setting_is_described_with_values_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "learner.refer.c"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "  c: number above 0, default 4.0\n" in out
    assert "importance ratio" in out
    assert "anneal" not in out.split("c:")[1]


def test_shared_options_of_variants_are_described_once_with_the_defaults_of_each(sections: list[Section]) -> None:
    defaults_by_section = {
        section.variant: {f.name: f for f in section.fields} for section in sections if section.path == "exploration"
    }
    assert "near_envelope" in defaults_by_section[""]
    assert all("near_envelope" not in fields for variant, fields in defaults_by_section.items() if variant)
    assert defaults_by_section["process: ou"]["amplitude"].default == "[[1,1.0],[500,0.1]]"
    assert defaults_by_section["process: gaussian"]["amplitude"].default == "[[1,1.0]]"
    assert list(defaults_by_section["process: none"]) == ["budgets"]


def test_a_section_of_several_names_is_found_by_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "exploration.budgets.hour.trips"]) == ExitCode.OK
    assert "Entries into the fallback." in capsys.readouterr().out


def test_the_choices_of_a_selecting_key_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "limits.fallback.kind"]) == ExitCode.OK
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("limits")]
    assert titles == [f"limits.fallback (kind: {kind})" for kind in ("damp", "hold", "safe")]


def test_without_a_path_the_sections_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("limits.predicted (kind: pendulum)") for line in lines)


def test_a_misspelled_setting_is_refused_with_the_likeliest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "limits.predictd"]) == ExitCode.CONFIGURATION
    assert "did you mean 'limits.predicted'?" in capsys.readouterr().err
