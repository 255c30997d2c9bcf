"""Mutated configurations: rejected with positions, or completely valid."""

from __future__ import annotations

from itertools import islice
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.config.yaml_nodes import read_tree
from tests.lab.mutants.configurations import Mutant, Raw, emitted, judge, mutants, spoil_text, spoil_tree


def test_a_hundred_mutants_are_refused_at_a_place_or_sound(tmp_path: Path) -> None:
    found = [finding for mutant in islice(mutants(13), 100) if (finding := judge(mutant, tmp_path, max_seconds=inf))]
    assert not found, "\n".join(f"{f.mutant.name}: {f.violation}" for f in found)


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1))
def test_mutants_of_any_seed_are_refused_at_a_place_or_sound(seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for mutant in islice(mutants(seed), 2):
            assert judge(mutant, Path(folder), max_seconds=inf) is None


def test_the_same_seed_gives_the_same_mutants() -> None:
    assert list(islice(mutants(3), 20)) == list(islice(mutants(3), 20))
    assert list(islice(mutants(3), 20)) != list(islice(mutants(4), 20))


def test_mutants_are_both_valid_and_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the oracle would exercise only one branch."""
    from onrig.tools.cli import main

    codes = set()
    for mutant in islice(mutants(5), 30):
        (tmp_path / "m.yaml").write_bytes(mutant.content)
        codes.add(main(["check", str(tmp_path / "m.yaml")]))
    assert codes == {0, 2}


def test_emitted_yaml_is_read_back_equal() -> None:
    data = {"a": [1, 2.5e-7, None, True], "b c": {"x": "[/x]\u202e", "y": {}}, "012": "on"}
    for block in (True, False):
        tree = read_tree(emitted(data, block=block), "here")  # type: ignore[arg-type]
        assert tree is not None
        assert tree.data == data
    assert emitted({"a": Raw("1:30")}) == '{"a": 1:30}'


def test_spoiling_does_not_change_the_original_document() -> None:
    rng = np.random.default_rng(0)
    tree = {"a": [1, 2], "b": {"c": 3.0}}
    for _ in range(200):
        spoil_tree(tree, rng)  # type: ignore[arg-type]
        spoil_text(b"a: 1\n", rng)
    assert tree == {"a": [1, 2], "b": {"c": 3.0}}


@pytest.mark.parametrize(
    ("printed", "code", "violation"),
    [
        ("mine.yaml:1:1: \x1b[31m\n", 2, "printed '\\x1b'"),
        ("no place at all\n", 2, "a problem without a place"),
        ("", 2, "refused without a message"),
        ("x:1:1: y\n", 70, "exit code 70"),
    ],
)
def test_the_oracle_detects_a_violation(
    printed: str, code: int, violation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*arguments: object, **options: object) -> int:
        import sys

        sys.stderr.write(printed)
        return code

    monkeypatch.setattr("onrig.tools.check.show", check)
    finding = judge(Mutant("m", b"rig: x"), tmp_path, max_seconds=inf)
    assert finding is not None
    assert finding.violation.startswith(violation)


def test_the_oracle_detects_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*arguments: object, **options: object) -> int:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr("onrig.tools.check.show", check)
    finding = judge(Mutant("m", b"rig: x"), tmp_path, max_seconds=inf)
    assert finding is not None
    assert "ZeroDivisionError: float division by zero" in finding.violation
