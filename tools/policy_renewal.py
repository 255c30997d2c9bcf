"""``onrig policy renew``: a board evaluates its policy; this host renews the lease and records the frames."""

from __future__ import annotations

import contextlib
import csv
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from onrig.hw.clock import Clock
from onrig.hw.identity import DeviceMismatch
from onrig.hw.messages import State
from onrig.hw.renewal import PolicyStopped, policy_name, renew, stop
from onrig.hw.rig import Rig
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import LinkError
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.control.connection import LimitsTooWide, apply_limits
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.policy.contract import METADATA_KEY, ModelRefused, contract_mismatch, decode_contract
from onrig.runtime.policy.onnx_wire import read_model as parse
from onrig.runtime.replay.learners.admission_terms import required_contract
from onrig.runtime.run_config import RunConfig
from onrig.sim.evaluation import read_model
from onrig.tools.device_process import open_device_line
from onrig.tools.load import load, print_problems, replace_device
from onrig.tools.terminal import complain


class RenewalOptions(NamedTuple):
    """Device, and the policy on its board."""

    file: Path
    config: str
    overrides: Sequence[str]
    port: str | None
    """Serial port that replaces the configuration's device."""


def renew_policy(options: RenewalOptions, duration_s: float | None, log: Path | None, clock: Clock = time) -> int:
    """Renew the lease for ``duration_s`` of device time, or until Ctrl-C, and return the exit code."""
    if duration_s is not None and not 0.0 < duration_s < math.inf:
        return complain("policy", f"--duration: expected a number of seconds above 0, got {duration_s:g}")
    try:
        config = load(options.config, options.overrides)
        if options.port is not None:
            config = replace_device(config, options.port)
        name = _policy_name(options.file, config)
        with contextlib.ExitStack() as stack:
            file = None if log is None else stack.enter_context(log.open("w", newline="", encoding="utf-8"))
            line = stack.enter_context(open_device_line(config))
            session = DeviceSession(stack.enter_context(contextlib.closing(line.open())), config.rig, clock)
            return _renew_lease(session, config, name, duration_s, file, clock)
    except ConfigError as error:
        return print_problems(error)
    except Failure as failure:
        return complain("policy", str(failure), failure.code)
    except OSError as error:
        return complain("policy", f"'{error.filename or log}': {error.strerror or error}")
    except (LinkError, DeviceMismatch, LimitsTooWide, RequestRefused) as error:
        return complain("policy", str(error), ExitCode.HARDWARE)


def _policy_name(file: Path, config: RunConfig) -> bytes:
    """Return the name of a policy on the board. Raises Failure if the file is not a policy for the rig at its rate."""
    try:
        model = read_model(file, config)
        if not isinstance(model, bytes):
            raise Failure(f"{file}: {model.reason}")
        contract = decode_contract(parse(model).metadata.get(METADATA_KEY, ""))
    except OSError as error:
        raise Failure(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ModelRefused, msgspec.DecodeError) as error:
        raise Failure(f"{file}: not a policy with a contract: {error}") from None
    required = required_contract(config.rig, config.rate_hz, stochastic=contract.stochastic, signals=config.signals)
    if difference := contract_mismatch(contract, required):
        raise Failure(f"{file}: {difference}")
    return policy_name(model)


def _renew_lease(
    session: DeviceSession, config: RunConfig, name: bytes, duration_s: float | None, file: TextIO | None, clock: Clock
) -> int:
    session.connect()
    session.configure(config.period_us, config.rig.lease_periods)
    apply_limits(config, session)
    code, reason, frames = ExitCode.OK, "", 0
    try:
        for _ in _limit_duration(
            duration_s, _log_frames(renew(session, name, config.period_us, clock), config.rig, file)
        ):
            frames += 1
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except PolicyStopped as stopped:
        code, reason = (ExitCode.SAFETY if frames else ExitCode.HARDWARE), str(stopped)
    is_safe = stop(session, config.rig, config.period_us, clock)
    if reason:
        return complain("policy", reason, code)
    if not is_safe:
        return complain("policy", "the device did not confirm that its outputs are safe; inspect it", ExitCode.HARDWARE)
    print(f"policy {name.hex()} acted; the device is disarmed, confirmed by a state frame")
    return code


def _limit_duration(duration_s: float | None, states: Iterator[State]) -> Iterator[State]:
    """Yield the frames until the duration has passed on the device."""
    start_us: int | None = None
    for state in states:
        start_us = state.t_us if start_us is None else start_us
        yield state
        if duration_s is not None and state.t_us - start_us >= duration_s * 1e6:
            return


def _log_frames(states: Iterator[State], rig: Rig, file: TextIO | None) -> Iterator[State]:
    """Write each frame to ``file`` and yield it."""
    if file is None:
        yield from states
        return
    writer = csv.writer(file)
    outputs = [f"{a.name} ({a.unit})" for a in rig.actuators]
    writer.writerow(["frame", "t_s", "lease_left", "tau_s", *(f"{s.name} ({s.unit})" for s in rig.sensors), *outputs])
    for state in states:
        sensors = (count * sensor.resolution for count, sensor in zip(state.sensors, rig.sensors, strict=True))
        applied = (count * actuator.resolution for count, actuator in zip(state.u_end, rig.actuators, strict=True))
        times = (f"{state.t_us * 1e-6:.6f}", state.lease_left, f"{state.tau_us * 1e-6:.6f}")
        writer.writerow([state.frame, *times, *(f"{value:.9g}" for value in (*sensors, *applied))])
        yield state
