from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.attack import FULL, NAMES, QUICK, campaigns, main
from tests.lab.attacks.campaign import Campaign, run_piece, verdict
from tests.lab.attacks.lockstep import LockstepHits, ReferenceRun
from tests.lab.pages import attack_line, attack_markdown, attack_text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "--seed"),
        (["--only", "garbage,nonsense"], "'nonsense'"),
        (["--json", "nowhere/at/all.json"], "--json: no such folder 'nowhere/at'"),
        (["--out", "/dev/null/x"], "--out: '/dev/null/x' cannot be written: Not a directory"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path / "out"), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_parts_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--out", str(tmp_path / "out")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(NAMES)
    assert list(tmp_path.iterdir()) == []


def test_foreign_folders_are_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert main(["--out", str(tmp_path)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "mine").unlink()
    (tmp_path / "attack.json").write_text('{"seed": 3, "quick": true}')
    capsys.readouterr()
    assert main(["--out", str(tmp_path)]) == 2
    assert "--seed 3 --quick" in capsys.readouterr().err


def test_recorded_pieces_are_not_repeated_and_decide_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attack.json").write_text('{"seed": 0, "quick": true}')
    (tmp_path / "models.jsonl").write_text('{"number": 0, "cases": 80, "counts": {"refused": 80}}\n')
    again = ["--quick", "--only", "models", "--out", str(tmp_path), "--markdown", str(tmp_path / "table.md")]
    assert main([*again, "--json", str(tmp_path / "attack-figures.json")]) == 0
    assert "everything holds" in capsys.readouterr().out
    assert "| models |" in (tmp_path / "table.md").read_text()
    assert '"holds": true' in (tmp_path / "attack-figures.json").read_text()
    (tmp_path / "models.jsonl").write_text('{"number": 0, "cases": 80, "findings": ["models 0: a row is missing"]}\n')
    assert main(again) == 70
    assert "models 0: a row is missing" in capsys.readouterr().out


pytestmark = pytest.mark.usefixtures("no_plots")

QUICK_CAMPAIGNS = {campaign.name: campaign for campaign in campaigns(0, QUICK)}
_LOCKSTEP = QUICK_CAMPAIGNS["kills-lockstep"]
assert isinstance(_LOCKSTEP, LockstepHits)
REFERENCE_RUN = _LOCKSTEP.reference_run
"""One undisturbed run suffices for all campaigns that compare with it."""


def test_the_full_attack_has_its_documented_size() -> None:
    cases = {c.name: c.description.split()[0] for c in campaigns(0, FULL)}
    assert cases["configurations"] == cases["models"] == "10000"
    assert cases["link-models"] == "1000"
    assert cases["garbage"] == "100000"
    assert {cases[f"{kind}-{where}"] for kind in ("kills", "stops") for where in ("lockstep", "realtime")} == {"50"}


EXPENSIVE = frozenset(
    {
        "kills-lockstep",
        "kills-realtime",
        "stops-lockstep",
        "stops-realtime",
        "disk",
        "shm",
        "descriptors",
        "crowds",
        "dead-hosts",
        "returning",
        "stops-on-a-bad-line",
    }
)
"""Complete runs, like those of `make attack ARGS=--quick`; part of `make study`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.study] * (name in EXPENSIVE)) for name in NAMES]
)
def test_a_few_cases_of_each_part_pass(name: str, tmp_path: Path) -> None:
    campaign: Campaign = QUICK_CAMPAIGNS[name]
    piece = run_piece(campaign, 0, tmp_path / "piece")
    found = verdict(campaign, [piece])
    assert found.cases > 0, [*piece.findings, *(out.read_text() for out in (tmp_path / "piece").glob("*.out"))]
    assert found.findings == []
    assert name in attack_line(found)
    assert "everything holds" in attack_text([found])
    assert attack_markdown([found]).count("\n") == 3


@pytest.mark.study
def test_the_lockstep_part_compares_with_an_undisturbed_run(tmp_path: Path) -> None:
    """A difference is detected: here the disturbed run has another seed than the reference."""
    other = ReferenceRun(1, REFERENCE_RUN.episodes)
    other._result = REFERENCE_RUN.result(tmp_path)
    found = run_piece(LockstepHits(other, 1, 1, 0, stop=False, max_stop_s=None), 0, tmp_path / "piece").findings
    assert len(found) == 3
    assert all("differ" in line for line in found)
