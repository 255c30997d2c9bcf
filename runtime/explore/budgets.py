"""Budgets per episode, hour and session: consumption, attenuation of the amplitude, and pauses.

An hour is any 60 minutes of device time: consumption is summed per minute, and a minute counts until an hour after it
has ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from onrig.runtime.explore.schedule import budget_factor
from onrig.runtime.explore.settings import Budgets, Quota

QUANTITIES: Final = ("interventions", "trips", "energy_s", "wear_strokes", "driven_s")
"""Budgeted quantities, in the order of the fields of `Quota`."""
Span = Literal["episode", "hour", "session"]
SPANS: Final[tuple[Span, ...]] = get_args(Span)
_MINUTE_US: Final = 60_000_000
_N_MINUTES: Final = 61
"""Number of stored minutes: an hour, plus the minute in progress."""


class Pause(NamedTuple):
    """Pause in a safe state because a budget is spent.

    ``wait_s`` is in device time: 0 if the next episode may start at once, inf if a person must resume the run.
    """

    cause: str
    hint: str
    wait_s: float


class TickConsumption(NamedTuple):
    """Consumption of one tick; same fields as `Quota`."""

    interventions: float = 0.0
    trips: float = 0.0
    energy_s: float = 0.0
    wear_strokes: float = 0.0
    driven_s: float = 0.0


class _Account:
    """Account of one quantity over one span; ``minutes`` holds the last hour, newest last.

    Consumption up to ``attenuation_start`` does not reduce the amplitude.
    """

    __slots__ = ("attenuation_start", "consumption", "limit", "minutes", "quantity", "span")

    def __init__(self, span: Span, quantity: int, limit: float, warn: float) -> None:
        self.span, self.quantity, self.limit = span, quantity, limit
        self.attenuation_start = warn * limit
        self.consumption = 0.0
        self.minutes = [0.0] * _N_MINUTES if span == "hour" else []


class Ledger:
    """Budget accounts of a run. They are plain floats, so that a tick costs only a few hundred nanoseconds per
    account."""

    def __init__(self, budgets: Budgets) -> None:
        self._warn = budgets.warn
        self._temperature = budgets.temperature
        self._accounts = [
            _Account(span, quantity, limit, budgets.warn)
            for span in SPANS
            for quantity, limit in enumerate(_limits(getattr(budgets, span)))
            if limit is not None
        ]
        self._by_quantity = [[a for a in self._accounts if a.quantity == q] for q in range(len(QUANTITIES))]
        self._hour_accounts = [a for a in self._accounts if a.minutes]
        self._minute_us = 0
        self._temperature_reading: float | None = None
        self._update_is_ample()

    def _update_is_ample(self) -> None:
        self.is_ample = self._temperature is None and all(
            a.consumption <= a.attenuation_start < a.limit for a in self._accounts
        )
        """Whether no budget requires attenuation or a pause; always False with a temperature sensor."""

    @property
    def is_active(self) -> bool:
        """Whether any budget is configured."""
        return bool(self._accounts) or self._temperature is not None

    def begin_episode(self) -> None:
        """Reset the episode's accounts."""
        for account in self._accounts:
            if account.span == "episode":
                account.consumption = 0.0
        self._update_is_ample()

    def book(self, amounts: tuple[float, float, float, float, float], duration_us: int = 0) -> None:
        """Book the consumption of a tick, in the order of ``QUANTITIES`` (``TickConsumption``), and advance device
        time."""
        for amount, accounts in zip(amounts, self._by_quantity, strict=True):
            if amount:
                for account in accounts:
                    account.consumption += amount
                    if account.consumption > account.attenuation_start:
                        self.is_ample = False
                    if account.minutes:
                        account.minutes[-1] += amount
        self._minute_us += duration_us
        if self._minute_us >= _MINUTE_US:
            self.advance(0)

    def set_temperature(self, temperature: float) -> None:
        """Record a reading of the temperature sensor, in its unit."""
        self._temperature_reading = temperature

    def advance(self, duration_us: int) -> None:
        """Advance device time."""
        n_minutes, self._minute_us = divmod(self._minute_us + duration_us, _MINUTE_US)
        if not n_minutes:
            return
        n_full_minutes = min(n_minutes, _N_MINUTES)
        for account in self._hour_accounts:
            account.minutes = account.minutes[n_full_minutes:] + [0.0] * n_full_minutes
            account.consumption = math.fsum(account.minutes)
        self._update_is_ample()

    def advance_at_rest(self, seconds: float) -> None:
        """Advance time without motion; the next temperature reading shows how far the rig has cooled down."""
        self.advance(round(1e6 * seconds))
        self._temperature_reading = None

    def reset_session(self) -> None:
        """Reset the session's accounts."""
        for account in self._accounts:
            if account.span == "session":
                account.consumption = 0.0
        self._update_is_ample()

    def factor(self) -> float:
        """Return the factor on the amplitude, set by the scarcest budget."""
        if self.is_ample:
            return 1.0
        minimum = 1.0
        for account in self._accounts:
            if not account.consumption <= account.attenuation_start < account.limit:
                minimum = min(minimum, budget_factor(account.consumption, account.limit, self._warn))
        return min(minimum, self._temperature_factor())

    def pause(self) -> Pause | None:
        """Return the longest pause required by spent budgets; None if no budget is spent."""
        if self.is_ample:
            return None
        pauses = [self._pause_for(a) for a in self._accounts if not a.consumption < a.limit]
        temperature = self._temperature
        if temperature is not None and self._temperature_factor() <= 0.0:
            cause = f"'{temperature.sensor}' reads {self._temperature_reading:g}; its limit is {temperature.limit:g}"
            pauses.append(Pause(cause, "let it cool, or adjust exploration.budgets.temperature", temperature.cool_s))
        return max(pauses, key=lambda p: p.wait_s, default=None)

    def _temperature_factor(self) -> float:
        temperature = self._temperature
        if temperature is None or self._temperature_reading is None:
            return 1.0
        return budget_factor(
            max(self._temperature_reading - temperature.warn, 0.0), temperature.limit - temperature.warn, 0.0
        )

    def _pause_for(self, account: _Account) -> Pause:
        location = f"exploration.budgets.{account.span}.{QUANTITIES[account.quantity]}"
        wait_s = self._wait_s(account) if account.span == "hour" else 0.0 if account.span == "episode" else math.inf
        return Pause(
            f"{account.consumption:.4g} of {account.limit:g} used at {location}",
            "find the cause, or raise the limit",
            wait_s,
        )

    def _wait_s(self, account: _Account) -> float:
        """Return the pause in s until the last hour's consumption is at most the ``warn`` fraction of the limit, and
        below the limit itself."""
        remaining, n_minutes = account.consumption, 0
        while (remaining > self._warn * account.limit or remaining >= account.limit) and n_minutes < _N_MINUTES:
            remaining -= account.minutes[n_minutes]
            n_minutes += 1
        return (n_minutes * _MINUTE_US - self._minute_us) / 1e6

    def state(self) -> dict[str, float]:
        """Return the state as plain numbers, for resuming a run."""
        state = {"minute_us": float(self._minute_us)}
        if self._temperature_reading is not None:
            state["degrees"] = self._temperature_reading
        for account in self._accounts:
            name = f"{account.span}.{QUANTITIES[account.quantity]}"
            state[name] = account.consumption
            state |= {f"{name}.{i}": consumption for i, consumption in enumerate(account.minutes) if consumption}
        return state

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore a saved state; accounts missing from it start empty."""
        self._minute_us = int(state.get("minute_us", 0))
        self._temperature_reading = state.get("degrees")
        for account in self._accounts:
            name = f"{account.span}.{QUANTITIES[account.quantity]}"
            account.consumption = state.get(name, 0.0)
            account.minutes = [state.get(f"{name}.{i}", 0.0) for i in range(len(account.minutes))]
        self._update_is_ample()


def _limits(quota: Quota) -> tuple[float | None, ...]:
    return tuple(msgspec.structs.astuple(quota))
