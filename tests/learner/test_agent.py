from __future__ import annotations

import json
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from onrig.learner.agent import Agent
from onrig.learner.algorithm_settings import DdpgConfig
from onrig.learner.algorithms import Minibatches, Signals
from onrig.learner.mirror import Mirror
from onrig.learner.refer_settings import ReferSettings
from onrig.learner.sac_settings import SacConfig
from onrig.learner.sampler_settings import NersSettings
from onrig.learner.settings import LearnerSettings
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.memory.layout import Flag, Layout
from onrig.runtime.memory.settings import Selection
from onrig.runtime.policy.admission import Admitted, Refused
from onrig.runtime.policy.contract import GAUSSIAN, METADATA_KEY, SQUASHED_GAUSSIAN
from onrig.runtime.run_config import layout_of
from onrig.runtime.run_loading import load_run
from onrig.tools.evaluate import admission_verdict

RUN = load_run("pendulum")
CAPACITY = 64


def agent(strategy: str = "FIFO[Uniform]", seed: int = 0, stored: int = CAPACITY) -> Agent:
    """An agent on a memory of made-up experiences."""
    config = msgspec.structs.replace(RUN, seed=seed, episodes=10, selection=Selection(strategy, CAPACITY))
    mirror = Mirror(CAPACITY, Layout(2, 1), cyclic=strategy.startswith("FIFO"))
    ners = NersSettings(hidden=(8, 6), score=(5,))
    made = Agent(config, LearnerSettings(ddpg=DdpgConfig(), updates_per_episode=100, ners=ners), mirror)
    rng = np.random.default_rng(1)
    for slot in range(stored):
        x = rng.uniform(-1, 1, 6).tolist()
        mirror.storage.insert(slot, x[:2], x[2:3], -100 * x[5], x[3:5])
    made.on_write(np.arange(stored))
    return made


def learned(agent: Agent, updates: int) -> tuple[list[int], list[int], list[float]]:
    """What was replayed: slots, generations and |TD errors| in order."""
    pieces = list(agent.learn(updates))
    slots, generations = (np.concatenate(column).tolist() for column in list(zip(*pieces, strict=True))[:2])
    ((td),) = np.concatenate([piece.values for piece in pieces], axis=1).tolist()
    return slots, generations, td


def test_it_does_as_many_updates_as_it_is_told_and_says_what_it_replayed() -> None:
    a = agent()
    slots, generations, td = learned(a, 130)
    assert a.updates == 130
    assert len(slots) == len(generations) == len(td) == 130 * 16
    assert set(slots) == set(range(CAPACITY))
    assert set(generations) == {1}
    assert min(td) >= 0.0
    assert all(np.isfinite(td))
    assert list(a.learn(0)) == []


def test_what_is_replayed_at_once_is_bounded_and_how_it_is_cut_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = agent(), agent()
    expected = learned(whole, 10)
    monkeypatch.setattr("onrig.learner.agent.MAX_CHUNK_EXPERIENCES", 3 * 16 + 1)
    pieces = list(cut.learn(7))
    assert [len(piece.slots) for piece in pieces] == [48, 48, 16]
    assert np.concatenate([piece.slots for piece in pieces]).tolist() == expected[0][: 7 * 16]
    monkeypatch.setattr("onrig.learner.agent.MAX_CHUNK_EXPERIENCES", 1)
    assert [len(piece.slots) for piece in cut.learn(3)] == [16, 16, 16]
    assert cut.export("run") == whole.export("run")


def test_the_rig_is_told_what_its_retention_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(agent("FIFO[PER]").feedback) == list(agent("MinError[PER]").feedback) == ["td"]
    a = agent("MaxKLDiv[Uniform]")
    assert list(a.feedback) == ["td", "kl"]
    with pytest.raises(ValueError, match="does not provide KL divergence"):
        learned(a, 1)
    update = a._algorithm.update

    def with_kl(batches: Minibatches) -> Signals:
        return update(batches)._replace(kl=batches.reward)

    monkeypatch.setattr(a._algorithm, "update", with_kl)
    (piece,) = a.learn(3)
    assert piece.values.shape == (2, 48)
    assert piece.values[1].tolist() == a._mirror.storage.reward[piece.slots].tolist()


def test_it_is_ready_once_the_memory_holds_a_minibatch() -> None:
    assert not agent(stored=15).has_minibatch
    assert agent(stored=16).has_minibatch


def test_the_same_seed_learns_the_same_and_another_does_not() -> None:
    first, second, other = agent(seed=1), agent(seed=1), agent(seed=2)
    assert learned(first, 50) == learned(second, 50)
    assert first.export("run") == second.export("run")
    assert learned(other, 50) != learned(agent(seed=1), 50)


def test_policies_call_themselves_by_the_id_that_comes_next_and_bear_the_contract_of_the_rig() -> None:
    a = agent()
    learned(a, 5)
    for policy_id in (1, 2):
        model = a.export("run-7")
        metadata = {p.key: p.value for p in onnx.load_from_string(model).metadata_props}
        contract = json.loads(metadata[METADATA_KEY])
        assert (contract["policy_id"], contract["parent_run"], contract["training_step"]) == (policy_id, "run-7", 5)
        a.newest_policy_id = policy_id  # the rig took it
        assert (contract["rig"], contract["rate_hz"]) == (RUN.rig.name, RUN.rate_hz)


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_policies_of_the_hidden_pendulum_fit_it_and_no_other(name: str) -> None:
    config = load_run("pendulum-hidden")
    if name == "sac":
        config = msgspec.structs.replace(config, exploration=OwnNoise())
    small = {"td3": {"hidden": [8, 8], "batch": 16}, "sac": {"hidden": [8], "batch": 16}, "ddpg": {}}
    settings = msgspec.convert({"algorithm": name, name: small[name], "updates_per_episode": 1}, LearnerSettings)
    mirror = Mirror(CAPACITY, layout_of(config), cyclic=True)
    rng = np.random.default_rng(0)
    for slot in range(CAPACITY):
        x = rng.uniform(-1, 1, 9)
        mirror.storage.insert(slot, x[:4], x[4:5], -1.0, x[5:], behaviour=np.ones(mirror.storage.layout.n_behaviour))
    a = Agent(config, settings, mirror)
    a.on_write(np.arange(CAPACITY))
    assert all(np.isfinite(piece.values).all() for piece in a.learn(2))
    assert isinstance(admission_verdict(a.export("run"), config), Admitted)
    told = admission_verdict(a.export("run"), msgspec.structs.replace(config, task=RUN.task))
    assert isinstance(told, Refused)
    assert "observations are ['cos_angle', 'sin_angle', 'cos_angle-1', 'sin_angle-1']" in told.reason


def test_a_stochastic_algorithm_exports_its_draw_to_rigs_that_explore_by_it() -> None:
    config = msgspec.structs.replace(RUN, exploration=OwnNoise())
    mirror = Mirror(CAPACITY, Layout(2, 1, behaviour=True), cyclic=True)
    sac = LearnerSettings(algorithm="sac", sac=SacConfig(hidden=(8,), batch=16), updates_per_episode=1)
    model = Agent(config, sac, mirror).export("run")
    verdict = admission_verdict(model, config)
    assert isinstance(verdict, Admitted)
    assert (verdict.contract.behaviour, verdict.contract.format) == (SQUASHED_GAUSSIAN, 2)
    assert isinstance(admission_verdict(model, RUN), Refused)


@pytest.mark.parametrize(
    "strategy", ["FIFO[Uniform]", "FIFO[PER]", "TDE(1.0)[PER+IS]", "FULL[Uniform+FIS]", "FIFO[NERS]", "Resv[ERO]"]
)
def test_it_goes_on_from_what_it_saved_as_if_nothing_had_happened(strategy: str, tmp_path: Path) -> None:
    first = agent(strategy)
    first.begin_episode(1, -3.0)
    learned(first, 20)
    first.newest_policy_id, first.last_completed_episode = 1, 3
    first.save(tmp_path / "learner.npz")
    again = agent(strategy)
    learned(again, 7)
    assert again.restore(tmp_path / "learner.npz")
    again.catch_up()
    assert (again.updates, again.newest_policy_id, again.last_completed_episode) == (20, 1, 3)
    for one in (first, again):
        one.begin_episode(2, 4.0)
    assert learned(again, 20) == learned(first, 20)
    assert again.export("run") == first.export("run")


def test_without_a_saved_state_it_stays_as_it_is(tmp_path: Path) -> None:
    a = agent()
    assert not a.restore(tmp_path / "learner.npz")
    assert learned(a, 10) == learned(agent(), 10)


def test_a_saved_state_that_is_damaged_or_foreign_is_not_taken(tmp_path: Path) -> None:
    good, path = tmp_path / "good.npz", tmp_path / "learner.npz"
    agent().save(good)
    raw = good.read_bytes()
    with zipfile.ZipFile(good) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    middle = largest.header_offset + largest.file_size // 2  # within its data
    damaged = raw[:middle] + bytes([raw[middle] ^ 0xFF]) + raw[middle + 1 :]
    for bad in (b"", raw[:10], raw[:middle], raw[:-30], damaged, b"PK\x03\x04" + bytes(50), b"\x80\x04N.", b"text"):
        path.write_bytes(bad)
        assert not agent().restore(path)
    np.savez(path, policies=np.array(1))
    assert not agent().restore(path)


def test_a_state_that_fits_in_part_changes_nothing(tmp_path: Path) -> None:
    path, other = tmp_path / "learner.npz", agent()
    learned(other, 10)
    other.save(path)
    with np.load(path) as saved:
        some = {name: saved[name] for name in saved.files if not name.endswith("adam/critic")}
    np.savez(path, **some)
    a = agent()
    assert not a.restore(path)
    assert (a.updates, a.export("run")) == (0, agent().export("run"))


def test_saving_replaces_the_state_before_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "learner.npz"
    a = agent()
    a.save(path)
    learned(a, 3)
    a.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["learner.npz"]
    again = agent()
    assert again.restore(path)
    assert again.updates == 3


def test_a_memory_that_has_grown_leaves_the_networks_and_begins_the_sampler_anew(tmp_path: Path) -> None:
    first = agent("FULL[PER]")
    learned(first, 20)
    first.save(tmp_path / "learner.npz")
    config = msgspec.structs.replace(RUN, seed=0, episodes=10, selection=Selection("FULL[PER]", 2 * CAPACITY))
    settings = LearnerSettings(ddpg=DdpgConfig(), updates_per_episode=100)
    grown = Agent(config, settings, Mirror(2 * CAPACITY, Layout(2, 1), cyclic=True))
    assert grown.restore(tmp_path / "learner.npz")
    assert grown.sampler_was_reset
    assert grown.updates == 20
    assert grown.export("run") == first.export("run")


@pytest.mark.parametrize(
    ("restored", "of", "kept"), [(CAPACITY, b"one", True), (CAPACITY - 1, b"one", False), (CAPACITY, b"two", False)]
)
def test_a_sampler_is_kept_for_a_memory_that_has_all_it_has_heard_of(
    tmp_path: Path, restored: int, of: bytes, kept: bool
) -> None:
    first = agent()
    first.attach_memory(b"one", {})
    first.catch_up()
    learned(first, 20)
    first.save(tmp_path / "learner.npz")
    again = agent()
    assert again.restore(tmp_path / "learner.npz")
    again.attach_memory(b"another", {of: restored})
    again.catch_up()
    assert again.sampler_was_reset is not kept
    assert (learned(again, 5)[0] == learned(first, 5)[0]) is kept


@pytest.mark.parametrize("strategy", ["FIFO[NERS]", "FIFO[ERO]"])
def test_what_a_sampler_has_learned_is_kept_where_it_starts_over(strategy: str) -> None:
    a = agent(strategy)
    a.attach_memory(b"one", {})
    a.catch_up()
    for episode in range(1, 4):
        a.begin_episode(episode, float(episode))
        learned(a, 20)
    before, fresh = a._sampler.learned_state(), agent(strategy)._sampler.learned_state()
    assert any((before[name] != fresh[name]).any() for name in before)
    a.attach_memory(b"another", {b"one": CAPACITY - 1})
    assert a.sampler_was_reset
    after = a._sampler.learned_state()
    assert {name: value.tolist() for name, value in after.items()} == {n: v.tolist() for n, v in before.items()}
    a.catch_up()
    learned(a, 5)


def test_networks_of_a_state_that_does_not_fit_a_memory_that_has_grown_are_kept(tmp_path: Path) -> None:
    first = agent("FULL[NERS]")
    for episode in range(1, 4):
        first.begin_episode(episode, float(episode))
        learned(first, 20)
    first.save(tmp_path / "learner.npz")
    config = msgspec.structs.replace(RUN, seed=0, episodes=10, selection=Selection("FULL[NERS]", 2 * CAPACITY))
    ners = NersSettings(hidden=(8, 6), score=(5,))
    settings = LearnerSettings(ddpg=DdpgConfig(), updates_per_episode=100, ners=ners)
    grown = Agent(config, settings, Mirror(2 * CAPACITY, Layout(2, 1), cyclic=True))
    assert grown.restore(tmp_path / "learner.npz")
    assert grown.sampler_was_reset
    before, after = first._sampler.learned_state(), grown._sampler.learned_state()
    assert {name: value.tolist() for name, value in after.items()} == {n: v.tolist() for n, v in before.items()}


def test_batches_of_a_memory_that_is_nobody_s_are_not_learned_from_again() -> None:
    config = msgspec.structs.replace(RUN, episodes=9, exploration=OwnNoise(), selection=Selection(capacity=CAPACITY))
    settings = msgspec.convert({"algorithm": "ppo", "ppo": {"hidden": [8], "steps": 24, "batch": 8}}, LearnerSettings)
    mirror = Mirror(CAPACITY, Layout(2, 1, behaviour=True), cyclic=True)
    a = Agent(config, settings, mirror)
    a.attach_memory(b"one", {})
    for step, x in enumerate(np.random.default_rng(1).uniform(-1, 1, (24, 7)).tolist()):
        mirror.storage.insert(
            step, x[:2], x[2:3], x[5], x[3:5], 0, 1, behaviour=(x[6], 0.2, x[2]), episode=1, step=step
        )
    a.attach_memory(b"three", {b"two": 24})
    a.learn_from_batches(lambda: None)
    assert a.batches.n_learned == 0
    a.attach_memory(b"four", {b"three": 0})
    a.learn_from_batches(lambda: None)
    assert a.batches.n_learned == 1


def _referring(seed: int) -> tuple[Agent, Mirror]:
    """An agent under ReF-ER on a memory that tells of the policies that acted."""
    config = msgspec.structs.replace(
        RUN, seed=seed, episodes=10, exploration=OwnNoise(), selection=Selection(capacity=64)
    )
    mirror = Mirror(CAPACITY, Layout(2, 1, behaviour=True), cyclic=True)
    made = Agent(config, LearnerSettings(updates_per_episode=1, refer=ReferSettings()), mirror)
    rng = np.random.default_rng(1)
    for slot in range(CAPACITY):
        x = rng.uniform(-1, 1, 7).tolist()
        acted = (x[6], 0.2, x[2])
        mirror.storage.insert(slot, x[:2], x[2:3], -100 * x[5], x[3:5], behaviour=acted)
    return made, mirror


def test_under_refer_it_exports_a_gaussian_and_takes_its_notes_through_a_restart(tmp_path: Path) -> None:
    (first, _), (second, mirror) = _referring(1), _referring(2)
    first.catch_up()
    learned(first, 30)
    assert first._notes is not None
    assert (first._notes.stored_column(0, "rho") != 1.0).mean() > 0.5
    first.save(tmp_path / "state.npz")
    assert second.restore(tmp_path / "state.npz")
    assert not second.sampler_was_reset
    second.catch_up()  # nothing is new
    assert learned(first, 20) == learned(second, 20)
    verdict = admission_verdict(second.export("run"), msgspec.structs.replace(RUN, exploration=OwnNoise()))
    assert isinstance(verdict, Admitted)
    assert verdict.contract.behaviour == GAUSSIAN
    mirror.storage.insert(0, (0.0, 0.0), (0.0,), 0.0, (0.0, 0.0), behaviour=(0.0, 0.2, 0.0))
    second.catch_up()
    assert second._notes is not None
    assert second._notes.stored_column(0, "rho")[0] == 1.0


def test_behind_the_last_episode_steps_have_length_0_and_no_policy_gets_worse() -> None:
    config = msgspec.structs.replace(RUN, episodes=1, exploration=OwnNoise(), selection=Selection(capacity=CAPACITY))
    settings = msgspec.convert({"algorithm": "ppo", "ppo": {"hidden": [8], "steps": 24, "batch": 8}}, LearnerSettings)
    mirror = Mirror(CAPACITY, Layout(2, 1, behaviour=True), cyclic=True)
    agent = Agent(config, settings, mirror)
    before = agent._algorithm.state()
    for step, x in enumerate(np.random.default_rng(1).uniform(-1, 1, (24, 7)).tolist()):
        acted = (x[6], 0.2, x[2])
        mirror.storage.insert(step, x[:2], x[2:3], x[5], x[3:5], 0, 1, behaviour=acted, episode=3, step=step)
    agent.attach_memory(b"one", {})
    agent.learn_from_batches(lambda: None)
    assert agent.updates == 30
    after = agent._algorithm.state()
    assert all((after[name] == values).all() for name, values in before.items() if name.startswith(("policy", "value")))


def test_half_a_batch_and_frozen_ones_outlive_a_restart(tmp_path: Path) -> None:
    config = msgspec.structs.replace(RUN, episodes=10, exploration=OwnNoise(), selection=Selection(capacity=CAPACITY))
    section = {"hidden": [8], "steps": 24, "batch": 8, "depth": 2, "draw": "uniform"}
    settings = msgspec.convert({"algorithm": "ppo", "ppo": section}, LearnerSettings)
    drawn = np.random.default_rng(1).uniform(-1, 1, (90, 7)).tolist()

    def agent_with(upto: int) -> tuple[Agent, Mirror]:
        mirror = Mirror(CAPACITY, Layout(2, 1, behaviour=True), cyclic=True)
        gather(mirror, upto)
        return Agent(config, settings, mirror), mirror

    def gather(mirror: Mirror, upto: int) -> None:
        for number in range(mirror.storage.inserted, upto):
            x, at = drawn[number], {"episode": 1 + number // 20, "step": number % 20}
            acted = (x[6], 0.2, x[2])
            flag = Flag.DEVIATES * (number % 7 == 0)
            mirror.storage.insert(number % CAPACITY, x[:2], x[2:3], x[5], x[3:5], flag, 1, behaviour=acted, **at)

    first, mirror = agent_with(62)
    first.attach_memory(b"one", {})
    first.learn_from_batches(lambda: None)
    assert first.batches.n_learned == 2
    first.save(tmp_path / "learner.npz")
    again, its_mirror = agent_with(62)
    assert again.restore(tmp_path / "learner.npz")
    again.attach_memory(b"another", {b"one": 62})
    beats: list[int] = []
    for one, of in ((first, mirror), (again, its_mirror)):
        gather(of, 90)
        one.learn_from_batches(lambda: beats.append(1))
    assert len(beats) == 2 * 10
    assert again.updates == first.updates
    assert again.export("run") == first.export("run")
    assert {k: v.tolist() for k, v in again.batches.state().items()} == {"position": [72, 3, 0, 11, 4, 11]}
    assert (again._algorithm.state()["replayed_advantage"] == first._algorithm.state()["replayed_advantage"]).all()
