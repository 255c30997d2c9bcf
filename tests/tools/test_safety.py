from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.control.tick import Tick
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.record import Rule
from onrig.runtime.run_loading import load_run
from onrig.runtime.safety import pendulum, phase_plane
from onrig.sim.plants import Pendulum
from onrig.tools.cli import main
from onrig.tools.safety_case import actuation, episodes
from onrig.tools.safety_case.actuation import Output, advance_delayed
from onrig.tools.safety_case.campaign import State, Tally, advance, draw_parameters, table
from onrig.tools.safety_case.episodes import run_core
from onrig.tools.safety_case.stack import run_stack

N_EPISODES = {"pendulum": 300, "pendulum-hardware": 120, "magman": 120}
"""Number of episodes through the tick's core in the tests; `onrig safety` runs 10^5."""


@pytest.mark.parametrize("run", N_EPISODES)
def test_no_policy_breaks_the_promise_on_any_plant_of_the_box(run: str) -> None:
    campaign = run_core(load_run(run), N_EPISODES[run], seed=11)
    assert sum(t.episodes for t in campaign.values()) == N_EPISODES[run]
    assert {name: t.breaches for name, t in campaign.items()} == dict.fromkeys(campaign, 0)
    assert min(t.worst_margin for t in campaign.values()) >= 0
    assert campaign["pumping"].rules[Rule.PREDICTED] > 0, "the shield was never needed: the adversary is too tame"
    assert campaign["broken"].rules[Rule.FINITE] > 0


@pytest.mark.parametrize(
    ("run", "dead_band"),
    [("pendulum", 0.6), pytest.param("pendulum-hardware", 0.6, marks=pytest.mark.study), ("magman", 0.06)],
)
def test_no_policy_breaks_the_promise_on_any_plant_with_a_covered_dead_band(run: str, dead_band: float) -> None:
    config = load_run(run, [f"limits.predicted.dead_band={dead_band}"])
    for campaign in (run_core(config, 120, seed=11), run_stack(config, 12, seed=3)):
        assert sum(t.breaches for t in campaign.values()) == 0
        assert sum(t.rules[Rule.PREDICTED] for t in campaign.values()) > 0


@pytest.mark.parametrize("output", ["driven", "released"])
def test_no_policy_breaks_the_promise_on_a_plant_that_acts_late(output: str) -> None:
    """The last command of a dead host acts for the plant's delay after the device's safe output."""
    late_settings = [
        "limits.predicted.late_us=31000",
        "limits.predicted.plant_delay_us=30000",
        f"rig.safe_output={output}",
    ]
    config = load_run("pendulum", late_settings)
    for campaign in (run_core(config, 120, seed=11), run_stack(config, 12, seed=3)):
        assert sum(t.breaches for t in campaign.values()) == 0
        assert sum(t.rules[Rule.PREDICTED] for t in campaign.values()) > 0


@pytest.mark.parametrize("delay_s", [0.0, 0.004, 0.013, 0.02, 0.031, 0.04])
def test_outputs_are_delayed_by_the_plants_delay(delay_s: float) -> None:
    """A plant without friction or gravity integrates the delayed output: 1 V for its first half period, then 0."""
    period_s = 0.02
    plant = Pendulum().with_lumped({"gravity_per_s2": 1e-12, "damping_per_s": 1e-12, "gain_per_v_s2": 1.0})

    def make_output(previous: float, next_output: float) -> Output:
        return Output(np.full((1, 1), previous), np.full((1, 1), next_output), np.full(1, 0.01))

    state: State = (np.zeros(1), np.zeros(1))
    outputs, speeds = deque([make_output(0.0, 0.0)] * 3, 3), list[float]()
    for step in (make_output(1.0, 0.0), make_output(0.0, 0.0), make_output(0.0, 0.0), make_output(0.0, 0.0)):
        outputs.append(step)
        state, _ = advance_delayed(plant, state, outputs, np.full(1, delay_s), period_s)
        speeds.append(float(state[-1][0]))
    end_times_s = period_s * np.arange(1, 5)
    np.testing.assert_allclose(speeds, np.clip(end_times_s - delay_s, 0.0, 0.01), atol=1e-12)


def test_plants_are_drawn_with_a_dead_band_only_if_one_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    dead_bands: list[float] = []

    def record_dead_band(plant: Pendulum, *args: object) -> object:
        dead_bands.append(0.0 if plant.dead_band is msgspec.UNSET else float(np.max(plant.dead_band)))
        return advance(plant, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(actuation, "advance", record_dead_band)
    for covered_dead_band in (0.0, 0.6):
        dead_bands.clear()
        run_core(load_run("pendulum", [f"limits.predicted.dead_band={covered_dead_band}"]), 12, seed=1)
        assert max(dead_bands) == covered_dead_band


@pytest.mark.parametrize("run", N_EPISODES)
def test_the_promise_holds_through_twin_protocol_and_session(run: str) -> None:
    campaign = run_stack(load_run(run), 12, seed=3)
    assert sum(t.breaches for t in campaign.values()) == 0
    assert 12 < sum(t.ticks for t in campaign.values()) < 12 * 200, "each host dies on the way"


@pytest.mark.parametrize("output", ["driven", "released"])
@pytest.mark.parametrize("run", ["pendulum", "pendulum-hardware"])
def test_a_host_that_dies_breaks_no_promise_whatever_the_safe_output_does(run: str, output: str) -> None:
    config = load_run(run, [f"rig.safe_output={output}"])
    for campaign in (run_core(config, 120, seed=12), run_stack(config, 24, seed=4)):
        assert sum(t.breaches for t in campaign.values()) == 0


def test_a_shield_that_relies_on_its_fallback_alone_is_broken_by_a_host_that_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The campaign can fail: a safe set whose states only a living host can keep is not enough."""
    monkeypatch.setattr(phase_plane, "_coasting_curve", lambda case: np.full(phase_plane.N_NODES, case.limit))
    for cached_function in (phase_plane._curves, phase_plane.upper_side, pendulum._tables):
        cached_function.cache_clear()
    config = load_run("pendulum", ["rig.safe_output=released"])
    try:
        campaign = run_core(config, 120, seed=12)
    finally:
        for cached_function in (phase_plane._curves, phase_plane.upper_side, pendulum._tables):
            cached_function.cache_clear()
    assert sum(t.breaches for t in campaign.values()) > 0


def test_without_the_prediction_the_same_policies_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign can fail: a shield that only compares the velocity with its limit and then brakes is not enough."""
    config = load_run("pendulum-hardware")

    class TickWithoutPrediction(Tick):
        def __init__(self, _: object) -> None:
            super().__init__(
                msgspec.structs.replace(config, limits=msgspec.structs.replace(config.limits, predicted=None))
            )

    monkeypatch.setattr(episodes, "Tick", TickWithoutPrediction)
    campaign = run_core(config, 60, seed=2)
    assert campaign["pumping"].breaches > 0
    assert campaign["pumping"].worst_margin < 0


def test_the_same_seed_gives_the_same_campaign() -> None:
    config = load_run("magman")
    assert run_core(config, 12, seed=5) == run_core(config, 12, seed=5)
    assert run_core(config, 12, seed=5) != run_core(config, 12, seed=6)


def test_the_peak_of_the_speed_is_found_between_samples() -> None:
    state, peak = advance(Pendulum(), (np.array([1.0]), np.array([0.0])), (np.zeros(1),), np.array([0.4]), 200)
    assert peak[0] > abs(state[1][0]) + 0.1


def test_drawn_plants_reach_the_corners_of_the_box_and_never_exceed_it() -> None:
    nominal_parameters = np.array([24.0, 0.3, 6.0])
    relative_parameters = (
        draw_parameters(nominal_parameters, 0.3, 4000, np.random.default_rng(1)) / nominal_parameters[:, None]
    )
    assert relative_parameters.min() == pytest.approx(0.7)
    assert relative_parameters.max() == pytest.approx(1.3)
    corners = {tuple(np.sign(c - 1.0)) for c in relative_parameters.T if np.allclose(np.abs(c - 1.0), 0.3)}
    assert len(corners) == 8


def test_the_table_adds_up() -> None:
    a, b = Tally(), Tally()
    a.add(0.25)
    b.add(-0.01)
    a.ticks, b.ticks = 100, 100
    a.rules[Rule.PREDICTED] = 10
    *_, total = table({"a": a, "b": b}).splitlines()
    assert total.split() == ["all", "2", "200", "1", "-1.00%", "5.00%"]


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_both_campaigns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["safety", "pendulum", "--episodes", "12", "--lockstep", "6"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "pendulum: 12 episodes through the tick's core: 0 breaches, worst margin" in out
    assert "pendulum: 6 episodes through the complete stack: 0 breaches, worst margin" in out


def test_a_breach_is_exit_code_5(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    breached_tally = Tally()
    breached_tally.add(-0.1)
    monkeypatch.setattr(episodes, "run_core", lambda *_: {"pumping": breached_tally})
    assert main(["safety", "pendulum", "--lockstep", "0"]) == ExitCode.SAFETY
    assert "1 breaches, worst margin -10.00%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pendulum", "--episodes", "-1"], "expected 0 or more"),
        (["pendulum", "--set", "limits.predicted=null"], "limits.predicted is not set"),
        (["pendulun"], "no 'pendulun'"),
        (["pendulum", "--set", "device={port: {path: /dev/null}}", "--episodes", "0"], "needs a twin"),
        (["pendulum", "--episodes", "0", "--lockstep", "0"], "expected more than 0 for at least one of them"),
        (["magman", "--plot", "/nowhere/at/all.png"], "--plot: no such folder '/nowhere/at'"),
    ],
)
def test_invalid_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["safety", *arguments]) == ExitCode.CONFIGURATION
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_the_plot_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["safety", "pendulum", "magman", "--plot", str(tmp_path / "set.png")]) == ExitCode.OK
    assert (tmp_path / "set.png").stat().st_size > 10_000
