from __future__ import annotations

from pathlib import Path

from tests.lab.attack import attack
from tests.lab.attacks.campaign import MAX_GROWTH_MB, Piece, RecordedPieces, run_piece, verdict


class Drill:
    """A campaign without an actual attack."""

    name = "drill"
    description = "a drill"
    pieces = 3
    piece_s = 1.0

    def __init__(self, findings: dict[int, str] | None = None, dies_at: int | None = None) -> None:
        self.findings = findings or {}
        self.dies_at = dies_at
        self.done: list[int] = []

    def run(self, number: int, folder: Path) -> Piece:
        assert list(folder.iterdir()) == []
        (folder / "evidence").write_text("x")
        if number == self.dies_at:
            raise OSError("no room")
        self.done.append(number)
        return Piece(number, 10, [self.findings[number]] if number in self.findings else [], {"landed": 10})


def test_an_interrupted_attack_is_resumed(tmp_path: Path) -> None:
    first = Drill()
    recorded = RecordedPieces(tmp_path / "drill.jsonl")
    recorded.add(run_piece(first, 1, tmp_path / "kept" / "x"))
    with (tmp_path / "drill.jsonl").open("ab") as file:
        file.write(b'{"number": 2, "ca')  # the power failed here
    second = Drill()
    (found,) = attack([second], tmp_path, lambda activity, seconds: None)
    assert second.done == [0, 2]
    assert found.holds
    assert (found.cases, found.counts) == (30, {"landed": 30})


def test_only_pieces_with_findings_are_kept(tmp_path: Path) -> None:
    (found,) = attack([Drill({1: "lost a row"})], tmp_path, lambda activity, seconds: None)
    assert found.findings == ["drill 1: lost a row"]
    assert not found.holds
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["drill-1"]


def test_a_crash_of_a_campaign_is_a_finding(tmp_path: Path) -> None:
    (found,) = attack([Drill(dies_at=2)], tmp_path, lambda activity, seconds: None)
    assert found.findings == ["drill 2: the attack itself broke off: OSError: no room"]


def test_growth_is_a_finding_and_missing_pieces_are_not_a_success() -> None:
    grown = [Piece(n, 1, growth_mb={"replay": n * MAX_GROWTH_MB}) for n in range(3)]
    found = verdict(Drill(), grown)
    assert found.findings == ["drill 2: replay holds 20.0 MB more in the last tenth"]
    assert found.growth_mb == 20.0
    part = verdict(Drill(), grown[:1])
    assert (part.findings, part.complete, part.holds) == ([], False, False)
