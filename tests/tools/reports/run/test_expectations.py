"""The expectations of an advice in the report of a run, next to its results."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.view.run_view import RunFiles, read_run
from onrig.tools.advised import Advice, advice_facts
from onrig.tools.reports.run.expectations import advice_sheet, identification_sheet, warn_of_unexpected_scores
from onrig.tools.reports.run.tables import warnings
from onrig.tools.run_facts import facts_from_files
from onrig.tools.sharpened import FITTINGS_FILE, Fitting
from tests.tools.reports.run.folders import write_run


def advice(low: float, high: float, objective: str = "final") -> Advice:
    name = "candidates/td3.yaml"
    return Advice("pendulum", "pendulum", "swingup", 50.0, 6, objective, "TD3", name, 14, 0.5, 0.4, 0.6, low, high, ())


def files(folder: Path, meta: dict[str, object], *, episodes: int = 6) -> RunFiles:
    config = write_run(folder)
    m = read_run(folder, config)
    score = np.linspace(0.1, 0.6, 6)
    train = {name: column[:episodes] for name, column in m.train.items()}
    return m._replace(meta={**m.meta, **meta}, train=train, evaluation={**m.evaluation, "normalized": score})


@pytest.mark.parametrize(
    ("low", "high", "objective", "verdict"),
    [
        (0.5, 0.7, "final", "0.600, within the expected range"),
        (0.7, 0.9, "final", "0.600, below the expected range"),
        (0.1, 0.3, "final", "0.600, above the expected range"),
        (0.3, 0.4, "regret", "0.350, within the expected range"),
    ],
)
def test_a_run_is_compared_with_the_expectations_from_the_twin(
    low: float, high: float, objective: str, verdict: str, tmp_path: Path
) -> None:
    m = files(tmp_path / "run", advice_facts(advice(low, high, objective)))
    sheet = advice_sheet(m)
    assert sheet is not None
    assert sheet.rows[1] == ("this run", verdict)
    advice_warnings = [line for line in warnings(m, facts_from_files(m), []) if "onrig advise" in line]
    assert advice_warnings == ([] if "within the expected range" in verdict else [*warn_of_unexpected_scores(m)])
    assert not advice_warnings or "identify it again" in advice_warnings[0]


def test_a_run_is_not_judged_before_its_end(tmp_path: Path) -> None:
    m = files(tmp_path / "run", advice_facts(advice(0.7, 0.9)), episodes=4)
    sheet = advice_sheet(m)
    assert sheet is not None
    assert sheet.rows[1] == ("this run", "not yet known")
    assert not [*warn_of_unexpected_scores(m)]


@pytest.mark.parametrize("meta", [{}, {"advised": "all will be well"}, {"advised": {"best": 1}}])
def test_a_run_without_advice_has_no_such_table(meta: dict[str, object], tmp_path: Path) -> None:
    m = files(tmp_path / "run", meta)
    assert advice_sheet(m) is None
    assert not [*warn_of_unexpected_scores(m)]


def test_advice_is_written_with_the_run_and_read_back() -> None:
    facts = msgspec.json.decode(msgspec.json.encode(advice_facts(advice(0.1, 0.2))))
    assert msgspec.convert(facts["advised"], Advice) == advice(0.1, 0.2)


def test_a_sharpened_identification_is_shown_and_a_plant_that_has_departed_from_it_is_a_warning(tmp_path: Path) -> None:
    m = files(tmp_path / "run", {})
    assert identification_sheet(m) is None
    fitted = [Fitting(3000, widths={"gain": (0.02, 0.004)}), Fitting(6000, problem="the plant has left it")]
    (m.folder / FITTINGS_FILE).write_bytes(b"".join(msgspec.json.encode(f) + b"\n" for f in fitted))
    sheet = identification_sheet(m)
    assert sheet is not None
    assert sheet.rows == (("gain", "±2.00%", "±0.40%"),)
    assert "3000 ticks" in sheet.notes[0]
    assert [*warn_of_unexpected_scores(m)] == [
        "The identification could not be sharpened by the run's data: the plant has left it."
    ]


def test_a_departure_remains_a_warning_after_a_fit_that_agrees(tmp_path: Path) -> None:
    m = files(tmp_path / "run", {})
    fitted = [Fitting(3000, problem="the plant has left it", has_departed=True), Fitting(6000)]
    (m.folder / FITTINGS_FILE).write_bytes(b"".join(msgspec.json.encode(f) + b"\n" for f in fitted))
    (warning,) = warn_of_unexpected_scores(m)
    assert warning.startswith("The plant had left the identification during the run")


def test_a_run_of_another_length_is_not_judged(tmp_path: Path) -> None:
    m = files(tmp_path / "run", advice_facts(msgspec.structs.replace(advice(0.7, 0.9), episodes=500)))
    sheet = advice_sheet(m)
    assert sheet is not None
    assert sheet.rows[1] == ("this run", "not comparable: 6 episodes here, 500 in the trials")
    assert not [*warn_of_unexpected_scores(m)]
