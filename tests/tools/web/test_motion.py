from __future__ import annotations

import numpy as np
import pytest

from onrig.runtime.record import Flag, Kind, Rule
from onrig.tools.web.motion import SAMPLES_PER_S, Motion
from tests.runtime.samples import PENDULUM, Records, episode, records


def at_rate(n: int, rate_hz: float) -> Records:
    rows = records(n)
    rows["t_mono_ns"] = 10**15 + (np.arange(n) * 1e9 / rate_hz).astype(np.int64)
    return rows


def times(samples: dict[str, object] | None) -> list[float]:
    assert samples is not None
    found = samples["t"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("rate_hz", [20, 200, 1000])
@pytest.mark.parametrize("piece", [1, 7, 100])
def test_a_live_rig_is_thinned_to_what_an_eye_can_use(rate_hz: float, piece: int) -> None:
    rows, motion = at_rate(1000, rate_hz), Motion(PENDULUM)
    found = [motion.live(rows[i : i + piece]) for i in range(0, len(rows), piece)]
    shown = [t for samples in found if samples is not None for t in times(samples)]
    seconds = len(rows) / rate_hz
    assert len(shown) == pytest.approx(min(rate_hz, SAMPLES_PER_S) * seconds, rel=0.05)
    assert shown == sorted(set(shown))


def test_an_intervention_is_shown_even_where_its_record_is_left_out() -> None:
    rows = at_rate(1000, 1000)
    rows["rule"][130] = Rule.PREDICTED
    samples = Motion(PENDULUM).live(rows)
    assert samples is not None
    assert samples["rule"].count(Rule.PREDICTED) == 1  # type: ignore[attr-defined]


def test_what_is_no_number_is_nothing_to_draw() -> None:
    rows = at_rate(2, 20)
    rows["policy"][0] = np.nan
    samples = Motion(PENDULUM).live(rows)
    assert samples is not None
    assert samples["policy"] == [[None, 0.0]]


def test_a_clip_is_the_newest_whole_episode_in_device_time() -> None:
    rows = np.concatenate([episode(20, episode=1), episode(30, episode=2, kind=Kind.EVAL), records(5, episode=3)])
    samples = Motion(PENDULUM).clip(rows)
    assert samples is not None
    assert (samples["episode"], samples["kind"]) == (2, "evaluation")
    assert times(samples) == pytest.approx([0.02 * i for i in range(31)], abs=1e-3)


def test_a_long_episode_is_thinned_and_keeps_both_ends() -> None:
    samples = Motion(PENDULUM).clip(episode(5000))
    assert len(times(samples)) <= 400
    assert (times(samples)[0], times(samples)[-1]) == (0.0, 100.0)


def test_there_is_no_clip_without_an_episode_that_has_both_ends() -> None:
    assert Motion(PENDULUM).clip(records(50)) is None
    headless = episode(20)[5:]
    assert Motion(PENDULUM).clip(headless) is None
    homing = episode(20, kind=Kind.RESET)
    assert homing["flags"][-1] & Flag.NO_ACTION
    assert Motion(PENDULUM).clip(homing) is None
