from __future__ import annotations

from onrig.runtime.supervise.watchdog import GIVE_UP_S, Verdict, Watchdog

LOOK_S = 0.125


def looks(watchdog: Watchdog, start_s: float, seconds: float, ticks: int, *, moving: bool = True) -> list[Verdict]:
    """Look every eighth of a second; ``ticks`` stands still."""
    n = int(seconds / LOOK_S)
    return [watchdog.look(start_s + LOOK_S * k, ticks, moving=moving) for k in range(n)]


def test_a_loop_that_ticks_is_fine() -> None:
    watchdog = Watchdog(0.02)
    assert {watchdog.look(LOOK_S * k, k, moving=True) for k in range(1000)} == {Verdict.FINE}


def test_a_loop_that_stands_is_told_of_once_and_is_back_with_its_next_tick() -> None:
    watchdog = Watchdog(0.02)
    verdicts = looks(watchdog, 0.0, 5.0, 7)
    assert [v for v in verdicts if v is not Verdict.FINE] == [Verdict.HANGS]
    assert watchdog.look(5.0, 8, moving=True) is Verdict.BACK
    assert watchdog.look(5.1, 9, moving=True) is Verdict.FINE


def test_a_loop_that_does_not_come_back_is_given_up() -> None:
    verdicts = looks(Watchdog(0.02), 0.0, GIVE_UP_S + 2.0, 7)
    assert [v for v in verdicts if v is not Verdict.FINE][:2] == [Verdict.HANGS, Verdict.GONE]


def test_slow_rigs_have_more_time() -> None:
    assert set(looks(Watchdog(1.0), 0.0, 19.0, 7)) == {Verdict.FINE}
    assert Verdict.HANGS in looks(Watchdog(1.0), 0.0, 22.0, 7)


def test_a_loop_that_waits_between_episodes_does_not_hang() -> None:
    assert set(looks(Watchdog(0.02), 0.0, 100.0, 7, moving=False)) == {Verdict.FINE}


def test_time_in_which_the_supervisor_slept_itself_does_not_count() -> None:
    watchdog = Watchdog(0.02)
    looks(watchdog, 0.0, 0.5, 7)
    assert watchdog.look(3600.0, 7, moving=True) is Verdict.FINE
