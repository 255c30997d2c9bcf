"""Replaying runs: equal if untouched, and every change is found and named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw.messages import Fault
from onrig.hw.rig import Camera
from onrig.runtime.control import arming
from onrig.runtime.images import ImageValues, pack_image
from onrig.runtime.log.reading import LogEnd, LogStart, Part, StoredLoopState, read_log
from onrig.runtime.random_streams import Role, device_seed
from onrig.runtime.record import Flag, Kind, Rule
from onrig.runtime.shm.board import Word
from onrig.runtime.starts import draw_start
from onrig.runtime.tracking import EpisodeTargets
from onrig.tools.replaying import recomputation
from onrig.tools.replaying.comparison import decision_fields
from onrig.tools.replaying.verification import Verification
from tests.runtime.control.cable import Cable
from tests.runtime.control.lossy_line import LossyLine
from tests.runtime.samples import LAYOUT
from tests.tools.replaying.runs import LoggedRun

Alteration = Callable[[np.ndarray], None]
GATED_SETTINGS = (
    "exploration={process: gaussian, std: 1.0, over: steps, amplitude: [[1, 1.0], [60, 0.2]],"
    " near_envelope: {from: 0.9}, back_off: {factor: 0.5},"
    " budgets: {episode: {interventions: 12}, hour: {interventions: 30}}}"
)


def verify(run: LoggedRun, parts: list[Part] | None = None, tolerance: float = 0.0) -> Verification:
    verification = Verification(run.config, run.folder, tolerance)
    verification.run(parts if parts is not None else read_parts(run))
    missing = verification.missing_ticks()
    assert parts is not None or missing.present == missing.expected or not verification._is_undecimated
    return verification


def read_parts(run: LoggedRun) -> list[Part]:
    config = run.config
    return list(read_log(run.folder, config.rig, behaviour=config.stochastic, inputs=config.input_names))


def tamper_with_record(run: LoggedRun, index: int, alter_record: Alteration) -> list[Part]:
    """The log of a run with its ``index``-th record changed and sealed again."""

    def parts() -> Iterator[Part]:
        number = 0
        for part in read_parts(run):
            if isinstance(part, np.ndarray):
                rows = part.copy()
                if number <= index < number + len(rows):
                    row = rows[index - number : index - number + 1]
                    alter_record(row)
                    rows[index - number] = reseal(run, row)
                number += len(rows)
                yield rows
            else:
                yield part

    return list(parts())


def reseal(run: LoggedRun, row: np.ndarray) -> np.void:
    values = [v for name in (row.dtype.names or ())[:-1] for v in np.ravel(row[name]).tolist()]
    buffer = memoryview(bytearray(run.layout.size))
    run.layout.pack_into(buffer, 0, values[0], tuple(values[1:]))
    resealed: np.void = np.frombuffer(buffer, run.layout.dtype)[0]
    return resealed


def drop_ticks(parts: list[Part], dropped: range) -> list[Part]:
    """The same without the records of some numbers."""
    remaining: list[Part] = []
    number = 0
    for part in parts:
        if isinstance(part, np.ndarray):
            numbers = np.arange(number, number + len(part))
            number += len(part)
            part = part[~np.isin(numbers, dropped)]
        remaining.append(part)
    return remaining


def assert_equal(verification: Verification, ticks: int) -> None:
    assert verification.comparison.first is None
    assert verification.comparison.n_differing == 0
    assert verification.comparison.ticks.total() == ticks
    assert dict(verification.unverified) == {}
    assert verification.missing == verification.altered == []


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> LoggedRun:
    actions_at = {25: lambda run: run.admit_policy(2), 70: lambda run: run.admit_policy(3)}
    return LoggedRun(tmp_path_factory.mktemp("runs") / "run", "pendulum", lockstep=False, actions_at=actions_at).run()


@pytest.fixture(scope="module")
def gated_run(tmp_path_factory: pytest.TempPathFactory) -> LoggedRun:
    return run_gated(tmp_path_factory.mktemp("runs") / "run")


def run_gated(folder: Path) -> LoggedRun:
    limits = ("limits.predicted=null", "limits.rate_per_s.voltage=60", "limits.envelope.velocity.high=1")
    return LoggedRun(folder, "pendulum", "episodes=3", "limits.envelope.velocity.low=-1", *limits, GATED_SETTINGS).run()


def hourly_usage(stored_state: StoredLoopState) -> float:
    explorer = stored_state.fields["explorer"]
    assert isinstance(explorer, dict)
    return float(explorer["budget.hour.interventions"])


@pytest.mark.parametrize("config", ["pendulum", "magman", "pendulum-hardware"])
def test_a_replayed_lockstep_run_decides_the_same(tmp_path: Path, config: str) -> None:
    run = LoggedRun(tmp_path / "run", config).run()
    verification = verify(run)
    assert_equal(verification, len(run.records))
    assert verification.episodes == {Kind.TRAIN: 2, Kind.EVAL: 2}


def test_a_run_whose_policies_were_swapped_within_an_episode_decides_the_same(pendulum: LoggedRun) -> None:
    ids = [(int(r["episode"]), int(r["kind"]), int(r["policy_id"])) for r in pendulum.records]
    assert {(1, 0, 1), (1, 0, 2)} <= set(ids)
    assert_equal(verify(pendulum), len(pendulum.records))


def test_gates_back_off_and_budgets_are_recomputed_from_the_records(gated_run: LoggedRun) -> None:
    assert any(r["rule"] == Rule.ENVELOPE for r in gated_run.records)
    assert len({float(r["amplitude"][0]) for r in gated_run.records}) > 5
    assert len(gated_run.records) < 6 * 31  # a spent budget ended episodes
    usages = [hourly_usage(p) for p in read_parts(gated_run) if isinstance(p, StoredLoopState)]
    assert usages != sorted(usages)  # the rig stood still for an hour: only the state kept by the loop shows how long
    assert_equal(verify(gated_run), len(gated_run.records))


def test_parameter_noise_is_redrawn_and_adapted(tmp_path: Path) -> None:
    noise = "exploration={process: parameter, adapt_every: 5, near_envelope: {from: 0.5}}"
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=3", noise).run()
    assert any(r["exploration"] > 0 for r in run.records)
    assert_equal(verify(run), len(run.records))


def test_the_drive_to_the_start_is_recomputed(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", lockstep=False, reset=False).run()
    assert any(r["kind"] == Kind.RESET for r in run.records)
    verification = verify(run)
    assert_equal(verification, len(run.records))
    assert verification.episodes[Kind.RESET] == 4


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "homing"])
@pytest.mark.parametrize("previous_command", [True, False])
def test_limits_judged_from_the_output_in_force_are_recomputed_whatever_was_lost(
    tmp_path: Path, *, reset: bool, previous_command: bool
) -> None:
    limits = ("limits.rate_per_s={voltage: 15}", "limits.jerk_per_s2={voltage: 250}", "task.reset.hold_s=0")
    observation_override = f"rig.previous_command={str(previous_command).lower()}"
    run = LoggedRun(tmp_path / "run", "pendulum", *limits, observation_override, lockstep=False, reset=reset)
    run.make_line = lambda device, clock: LossyLine(device, clock, random.Random(3), 0.15).transport
    run.run()
    assert {int(r["rule"]) for r in run.records} >= {Rule.RATE, Rule.JERK}
    assert any(r["missed"] for r in run.records)
    starts = [r for r in run.records if r["flags"] & Flag.FIRST and r["kind"] != Kind.RESET]
    assert any(r["answers"] for r in starts) is not reset, "the way to the start leaves its last command in force"
    assert_equal(verify(run), len(run.records))


@pytest.mark.parametrize("exploration", ["{process: ou}", "{process: parameter}", "{process: own}"])
def test_a_rolled_back_policy_acts_as_it_did(tmp_path: Path, exploration: str) -> None:
    def offer_bad_policy(run: LoggedRun) -> None:
        run.admit_policy(2, float("nan"))

    run = LoggedRun(
        tmp_path / "run", "pendulum", f"exploration={exploration}", lockstep=False, actions_at={20: offer_bad_policy}
    ).run()
    assert [int(r["policy_id"]) for r in run.records if r["flags"] & Flag.ROLLED_BACK] == [1]
    assert any(r["policy_id"] == 2 and np.isnan(r["policy"][0]) for r in run.records)
    assert_equal(verify(run), len(run.records))


def test_an_external_restraint_is_visible_in_the_amplitude_and_taken_from_it(tmp_path: Path) -> None:
    settings = "staleness={after_s: 1.0, then: lower, factor: 0.25}"
    run = LoggedRun(tmp_path / "run", "pendulum", settings)  # lockstep: no silence of a learner lifts it
    run.at_start = lambda loop: loop._explorer.restrain(0.25)
    run.run()
    assert 0.0 < max(float(r["amplitude"][0]) for r in run.records) <= 0.25
    assert_equal(verify(run), len(run.records))


def test_a_fault_of_the_device_also_ends_the_episode_in_the_replay(tmp_path: Path) -> None:
    def drop_lease(run: LoggedRun) -> None:
        run.device.fault = Fault.LEASE

    run = LoggedRun(tmp_path / "run", "pendulum", lockstep=False, actions_at={12: drop_lease}).run()
    assert any(r["fault"] for r in run.records)
    assert_equal(verify(run), len(run.records))


@pytest.mark.parametrize("process", ["ou", "own"])
def test_a_run_that_faded_out_is_verified_to_its_last_command(tmp_path: Path, process: str) -> None:
    def request_stop(run: LoggedRun) -> None:
        run.board[Word.STOP] = 1

    exploration = f"exploration.process={process}"
    run = LoggedRun(tmp_path / "run", "pendulum", exploration, lockstep=False, actions_at={15: request_stop}).run()
    assert sum(bool(r["flags"] & Flag.FADED) for r in run.records) > 5
    verification = verify(run)
    assert verification.comparison.first is None
    assert verification.comparison.ticks.total() == len(run.records)
    assert dict(verification.unverified) in ({}, {recomputation.UNFINISHED: 1})
    (run.folder / "policies" / "1.onnx").unlink()
    assert verify(run).comparison.first is None


@settings(max_examples=25)
@given(index=st.integers(0, 40), bit=st.integers(0, 11))
def test_one_changed_bit_of_a_sensor_is_found_at_its_place(pendulum: LoggedRun, index: int, bit: int) -> None:
    if pendulum.records[index]["flags"] & Flag.NO_ACTION:
        return

    def alter_record(row: np.ndarray) -> None:
        row["sensors"][0, 0] ^= 1 << bit

    first_difference = verify(pendulum, tamper_with_record(pendulum, index, alter_record)).comparison.first
    assert first_difference is not None
    # The reward of the previous tick was for reaching this state.
    tick = int(pendulum.records[index]["tick"])
    assert first_difference.tick in (tick, tick - 1)
    assert first_difference.field in ("observation", "reward")


@pytest.mark.parametrize("name", [n for n in decision_fields(LAYOUT) if n not in ("policy_id", "flags")])
def test_a_changed_decision_is_found_and_named(pendulum: LoggedRun, name: str) -> None:
    def alter_record(row: np.ndarray) -> None:
        raw = row[name].view(np.uint8).reshape(-1)
        raw[0] ^= 1

    comparison = verify(pendulum, tamper_with_record(pendulum, 12, alter_record)).comparison
    assert comparison.first is not None
    assert (comparison.first.tick, comparison.first.field) == (pendulum.records[12]["tick"], name)
    assert comparison.fields == {name: 1}


@pytest.mark.parametrize("flag", [Flag.TERMINATED, Flag.INVALID, Flag.LATE])
def test_a_changed_flag_is_found(pendulum: LoggedRun, flag: Flag) -> None:
    def alter_record(row: np.ndarray) -> None:
        row["flags"] ^= np.uint16(flag)

    comparison = verify(pendulum, tamper_with_record(pendulum, 12, alter_record)).comparison
    assert comparison.fields == {"flags": 1}


def test_a_changed_policy_id_is_found(pendulum: LoggedRun) -> None:
    def alter_record(row: np.ndarray) -> None:
        row["policy_id"] = 3

    comparison = verify(pendulum, tamper_with_record(pendulum, 12, alter_record)).comparison
    assert comparison.first is not None
    assert (comparison.first.tick, comparison.first.field) == (pendulum.records[12]["tick"], "policy")


def test_data_that_no_decision_depends_on_are_still_sealed(pendulum: LoggedRun) -> None:
    parts = read_parts(pendulum)
    rows = next(p for p in parts if isinstance(p, np.ndarray)).copy()
    rows["lateness_ns"][3] += 1
    index = next(i for i, p in enumerate(parts) if isinstance(p, np.ndarray))
    comparison = verify(pendulum, [*parts[:index], rows, *parts[index + 1 :]]).comparison
    assert comparison.fields == {"crc": 1}


def test_an_exchanged_policy_file_is_found(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum").run()
    run.admit_policy(2)
    (run.folder / "policies" / "2.onnx").rename(run.folder / "policies" / "1.onnx")
    comparison = verify(run).comparison
    assert comparison.first is not None
    assert comparison.first.field == "policy"
    assert comparison.fields["policy"] == sum(not r["flags"] & Flag.NO_ACTION for r in run.records)


def test_without_a_policy_file_its_answers_are_taken_from_the_records(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum").run()
    (run.folder / "policies" / "1.onnx").unlink()
    verification = verify(run)
    assert verification.comparison.first is None
    assert verification.comparison.ticks.total() == len(run.records)
    n_asked = sum(not r["flags"] & Flag.NO_ACTION for r in run.records)
    assert dict(verification.unverified) == {recomputation.MISSING_POLICY: n_asked}
    assert "1.onnx" in verification.missing[0]


def test_a_changed_configuration_is_found_and_named(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum").run()
    path = run.folder / "config.yaml"
    path.write_text(path.read_text() + "# changed\n")
    verification = verify(run)
    assert verification.comparison.first is None
    assert verification.altered == ["config.yaml differs from the configuration in log.mcap"]


def test_another_seed_gives_another_exploration(pendulum: LoggedRun) -> None:
    parts = read_parts(pendulum)
    log_start = parts[0]
    assert isinstance(log_start, LogStart)
    config = log_start.attachments["config.yaml"]
    assert b"\nseed: 0\n" in config
    other = {"config.yaml": config.replace(b"\nseed: 0\n", b"\nseed: 1\n")}
    verification = verify(pendulum, [log_start._replace(attachments=other), *parts[1:]])
    first_difference = verification.comparison.first
    assert first_difference is not None
    assert (first_difference.tick, first_difference.field) == (1, "explored")
    assert verification.altered


# -- missing data ----------------------------------------------------------------------------------------------------


def test_after_lost_records_the_rest_of_the_episode_is_reported_as_unverified(pendulum: LoggedRun) -> None:
    verification = verify(pendulum, drop_ticks(read_parts(pendulum), range(10, 12)))
    assert verification.comparison.first is None
    assert dict(verification.unverified) == {recomputation.LOST_RECORDS: 31 - 12, recomputation.UNFINISHED: 1}
    assert verification.comparison.ticks.total() == len(pendulum.records) - 2 - 19


def test_an_exploration_with_a_history_continues_from_the_state_saved_by_the_loop(gated_run: LoggedRun) -> None:
    is_first = [int(r["flags"]) & Flag.FIRST for r in gated_run.records]
    starts = [i for i, f in enumerate(is_first) if f]
    verification = verify(gated_run, drop_ticks(read_parts(gated_run), range(2, 4)))
    assert verification.comparison.first is None
    assert recomputation.UNKNOWN_STATE not in verification.unverified
    parts_without_state: list[Part] = [
        p for p in drop_ticks(read_parts(gated_run), range(2, 4)) if not isinstance(p, StoredLoopState)
    ]
    without_state = verify(gated_run, parts_without_state)
    assert without_state.comparison.first is None
    assert without_state.unverified[recomputation.UNKNOWN_STATE] == len(gated_run.records) - starts[1]


def test_an_exploration_state_other_than_the_saved_one_is_a_difference(gated_run: LoggedRun) -> None:
    parts: list[Part] = []
    for part in read_parts(gated_run):
        if isinstance(part, StoredLoopState) and part.fields["tick"]:
            explorer = part.fields["explorer"]
            assert isinstance(explorer, dict)
            part = StoredLoopState({**part.fields, "explorer": {**explorer, "training_steps": 1}})
        parts.append(part)
    comparison = verify(gated_run, parts).comparison
    assert comparison.first is not None
    assert comparison.first.field == "exploration state"


def test_records_read_again_by_a_second_replay_process_count_once(tmp_path: Path) -> None:
    def restart_replay(run: LoggedRun) -> None:
        repeated_records = np.array(run.records[-5:], run.layout.dtype)
        run.log.close()
        run.log = run.open_log()
        run.log.add(repeated_records)

    run = LoggedRun(tmp_path / "run", "pendulum", actions_at={50: restart_replay}).run()
    assert (run.folder / "log-2.mcap").exists()
    assert_equal(verify(run), len(run.records))


def test_a_resumed_session_continues_from_the_saved_state(gated_run: LoggedRun) -> None:
    parts = read_parts(gated_run)
    log_start = parts[0]
    assert isinstance(log_start, LogStart)
    starts = [int(r["tick"]) for r in gated_run.records if r["flags"] & Flag.FIRST]
    stored_states = [p for p in parts if isinstance(p, StoredLoopState) and int(str(p.fields["tick"])) >= starts[2]]
    rows = np.concatenate([p for p in parts if isinstance(p, np.ndarray)])
    resumed_start = LogStart(log_start.path, {**log_start.metadata, "session": "resumed"}, log_start.attachments)
    log_end = LogEnd(log_start.path, True)
    resumed_parts: list[Part] = [resumed_start, *stored_states, rows[rows["tick"] >= starts[2]], log_end]
    verification = verify(gated_run, [*parts, *resumed_parts])
    assert verification.sessions == 2
    assert_equal(verification, len(gated_run.records) + len(rows[rows["tick"] >= starts[2]]))


def test_a_decimated_log_proves_nothing(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", "log.decimation=5").run()
    verification = verify(run)
    assert verification.comparison.ticks.total() == 0
    assert list(verification.unverified) == ["the log contains only some of the ticks (log.decimation)"]


# -- another board ---------------------------------------------------------------------------------------------------


def test_a_tolerance_ignores_small_differences_of_an_answer(pendulum: LoggedRun) -> None:
    def alter_record(row: np.ndarray) -> None:
        row["policy"] += np.float32(1e-5)

    parts = tamper_with_record(pendulum, 45, alter_record)  # an evaluation: the explored action is the policy's
    assert pendulum.records[45]["kind"] == Kind.EVAL
    assert verify(pendulum, parts).comparison.n_differing == 1
    assert verify(pendulum, parts, 1e-7).comparison.n_differing == 1
    assert verify(pendulum, parts, 1e-3).comparison.n_differing == 0


@pytest.mark.parametrize("exploration", [GATED_SETTINGS, "exploration={process: parameter, amplitude: [[1, 1.0]]}"])
def test_a_run_with_a_pulled_cable_replays_to_the_same_decisions(
    exploration: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cables: list[Cable] = []
    run = LoggedRun(
        tmp_path / "run", "pendulum", exploration, lockstep=False, actions_at={10: lambda r: cables[0].pull()}
    )  # fmt: skip
    run.at_start = lambda loop: cables.append(Cable(loop, run.device, run.clock, monkeypatch))

    def resume_on_prompt(source: str, kind: str, message: str = "", **values: object) -> bool:
        run.board[Word.RESUME_OUTSIDE] += kind == "warning"
        return True

    monkeypatch.setattr(arming, "report", resume_on_prompt)
    run.run()
    assert cables[0].n_pulls == 1
    cut_off_indices = [n for n, record in enumerate(run.records) if record["flags"] & Flag.CUT_OFF]
    assert len(cut_off_indices) == 1
    verification = verify(run)
    assert verification.comparison.first is None
    assert verification.comparison.ticks.total() == len(run.records)
    assert not verification.unverified

    def alter_record(row: np.ndarray) -> None:
        row["command"] += 1

    difference = verify(run, tamper_with_record(run, cut_off_indices[0], alter_record)).comparison
    assert (difference.first is not None, difference.fields) == (True, {"command": 1})


TARGETS = (
    "task.targets={ref: {kind: steps, low: -3, high: 3, every_s: 0.1}, wave: {kind: sine, amplitude: 1, "
    "frequency_hz: 2}}"
)
DRAWN_START = "task.start={position: [0.0, 0.02], velocity: 0}"


@pytest.mark.parametrize("evaluate_every", [1, 2])
def test_the_drive_to_a_drawn_start_and_the_targets_are_recomputed(tmp_path: Path, evaluate_every: int) -> None:
    settings = (TARGETS, DRAWN_START, f"evaluate_every={evaluate_every}", "episodes=3")
    run = LoggedRun(tmp_path / "run", "magman", *settings, lockstep=False, reset=False).run()
    verification = verify(run)
    assert_equal(verification, len(run.records))
    assert verification.episodes[Kind.RESET] == (6 if evaluate_every == 1 else 4)
    first_records = [r for r in run.records if r["flags"] & Flag.FIRST and r["kind"] != Kind.RESET]
    starts = [start_state(run, r) for r in first_records]
    assert len({start["position"] for start in starts}) == len(first_records)
    for record, start in zip(first_records, starts, strict=True):
        assert abs(record["observation"][0] - start["position"]) < 0.0025
    resets = np.array([r["observation"] for r in run.records if r["kind"] == Kind.RESET])
    assert (resets[:, 2:] == [0.0, 0.0]).all(), "on the way to a start, targets are at their middle"

    # A session that starts by driving to a start knows the destination from the log's state.
    parts = read_parts(run)
    log_start = parts[0]
    assert isinstance(log_start, LogStart)
    rows = np.concatenate([p for p in parts if isinstance(p, np.ndarray)])
    for reset in [r for r in run.records if r["flags"] & Flag.FIRST and r["kind"] == Kind.RESET][1:]:
        tick = int(reset["tick"])
        stored_states = [p for p in parts if isinstance(p, StoredLoopState) and int(str(p.fields["tick"])) >= tick]
        resumed_start = LogStart(log_start.path, {**log_start.metadata, "session": "resumed"}, log_start.attachments)
        resumed_parts: list[Part] = [
            resumed_start,
            *stored_states,
            rows[rows["tick"] >= tick],
            LogEnd(log_start.path, True),
        ]
        assert_equal(verify(run, resumed_parts), len(rows[rows["tick"] >= tick]))


def start_state(run: LoggedRun, record: np.void) -> dict[str, float]:
    role = Role.PLANT_EVAL if record["kind"] == Kind.EVAL else Role.PLANT_TRAIN
    seed = device_seed(run.config.seed, role, int(record["episode"]))
    return draw_start(run.config.task.all_starts, seed)


def test_lost_frames_do_not_delay_a_target(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", TARGETS, lockstep=False)
    run.make_line = lambda device, clock: LossyLine(device, clock, random.Random(3), 0.15).transport
    run.run()
    assert any(r["missed"] for r in run.records)
    assert_equal(verify(run), len(run.records))
    targets = EpisodeTargets(run.config.task, run.config.rig, run.config.period_us, 30)
    first_frames: dict[tuple[int, int], int] = {}
    for record in run.records:
        kind, episode = Kind(int(record["kind"])), int(record["episode"])
        n_passed = int(record["frame"]) - first_frames.setdefault((kind, episode), int(record["frame"]))
        target_values = targets.values_for_kind(run.config.seed, kind, episode).astype(np.float32)
        assert record["observation"][2:].tolist() == target_values[min(n_passed, 30)].tolist()


class SilentCameras:
    """Images of cameras that become silent at the n-th one."""

    def __init__(self, cameras: tuple[Camera, ...], n: int) -> None:
        self._cameras, self._n, self._n_reads, self.failure = cameras, n, 0, ""

    def read(self) -> tuple[ImageValues, ...]:
        self._n_reads += 1
        self.failure = "silent" if self._n_reads >= self._n else ""
        return tuple(pack_image(bytes([self._n_reads]) * camera.pixels) for camera in self._cameras)


@pytest.mark.parametrize(("reset", "kind"), [(True, Kind.TRAIN), (False, Kind.RESET)])
def test_an_episode_ended_by_a_silent_camera_is_equal(tmp_path: Path, reset: bool, kind: Kind) -> None:
    cameras = "rig.cameras=[{name: front, rows: 8, columns: 9}]"
    actions_at = {7: lambda run: run.orders.signal()}
    run = LoggedRun(tmp_path / "run", "pendulum-camera", cameras, lockstep=False, reset=reset, actions_at=actions_at)
    run.images = SilentCameras(run.config.cameras, 7)
    run.run()
    assert {record["kind"] for record in run.records} == {kind}
    assert_equal(verify(run), 7)
