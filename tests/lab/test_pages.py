from __future__ import annotations

import json
import os
from pathlib import Path

from onrig.tools.bench.report import conclude
from tests.lab.pages import draw_soak, soak_report, soak_text
from tests.lab.rig.balance import Gauges, checks
from tests.lab.rig.processes import children, use_of
from tests.lab.rig.test_balance import balanced


def gauges() -> Gauges:
    found = Gauges()
    for t in range(30):
        found.sample(float(t), {"soak": os.getpid()})
    return found


def test_a_page_reports_a_balanced_ledger() -> None:
    ledger = balanced()
    page = soak_text(ledger, gauges(), checks(ledger))
    assert "the ledger balances" in page
    assert "cable pulled" in page


def test_a_page_reports_imbalances() -> None:
    ledger = balanced()
    ledger.mismatches = 2
    page = soak_text(ledger, gauges(), checks(ledger))
    assert "NOT balanced: mirror mismatches: 2, bound 0" in page


def test_the_file_holds_plan_ledger_series_and_checks(tmp_path: Path) -> None:
    ledger = balanced()
    conclude(soak_report({"seed": 3.0}, ledger, gauges(), checks(ledger)), [], tmp_path / "soak.json")
    read = json.loads((tmp_path / "soak.json").read_text())
    assert read["plan"] == {"seed": 3.0}
    assert read["balances"] is True
    assert read["ledger"]["lifetimes"][0]["missed"] == {"link": 4, "host": 3}
    assert read["ledger"]["memory"]["replay"]["per_minute"] == 0.01
    assert len(read["processes"][0]["private_mb"]) == 30


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    assert draw_soak(tmp_path / "soak.png", balanced(), gauges(), 2.0)
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def test_ended_processes_are_omitted() -> None:
    gone = 2**22 + 1
    assert use_of(gone) is None
    assert children(gone) == {}
    found = Gauges()
    found.sample(0.0, {"nobody": gone})
    assert found.roles == []
