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
from onrig.sim.evaluation import admission_verdict

RUN = load_run("pendulum")
CAPACITY = 64


def agent(strategy: str = "FIFO[Uniform]", seed: int = 0, n_stored: int = CAPACITY) -> Agent:
    """An agent with a memory of made-up experiences."""
    config = msgspec.structs.replace(RUN, seed=seed, episodes=10, selection=Selection(strategy, CAPACITY))
    mirror = Mirror(CAPACITY, Layout(2, 1), cyclic=strategy.startswith("FIFO"))
    ners = NersSettings(hidden=(8, 6), score=(5,))
    new_agent = Agent(config, LearnerSettings(ddpg=DdpgConfig(), updates_per_episode=100, ners=ners), mirror)
    rng = np.random.default_rng(1)
    for slot in range(n_stored):
        x = rng.uniform(-1, 1, 6).tolist()
        mirror.storage.insert(slot, x[:2], x[2:3], -100 * x[5], x[3:5])
    new_agent.on_write(np.arange(n_stored))
    return new_agent


def learn_and_collect(agent: Agent, updates: int) -> tuple[list[int], list[int], list[float]]:
    """Replayed slots, generations and |TD errors| in order."""
    batches = list(agent.learn(updates))
    slots, generations = (np.concatenate(column).tolist() for column in list(zip(*batches, strict=True))[:2])
    ((td),) = np.concatenate([batch.values for batch in batches], axis=1).tolist()
    return slots, generations, td


def test_it_makes_the_requested_updates_and_reports_the_replayed_slots() -> None:
    a = agent()
    slots, generations, td = learn_and_collect(a, 130)
    assert a.updates == 130
    assert len(slots) == len(generations) == len(td) == 130 * 16
    assert set(slots) == set(range(CAPACITY))
    assert set(generations) == {1}
    assert min(td) >= 0.0
    assert all(np.isfinite(td))
    assert list(a.learn(0)) == []


def test_batches_are_bounded_and_their_division_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, in_parts = agent(), agent()
    expected = learn_and_collect(at_once, 10)
    monkeypatch.setattr("onrig.learner.agent.MAX_CHUNK_EXPERIENCES", 3 * 16 + 1)
    batches = list(in_parts.learn(7))
    assert [len(batch.slots) for batch in batches] == [48, 48, 16]
    assert np.concatenate([batch.slots for batch in batches]).tolist() == expected[0][: 7 * 16]
    monkeypatch.setattr("onrig.learner.agent.MAX_CHUNK_EXPERIENCES", 1)
    assert [len(batch.slots) for batch in in_parts.learn(3)] == [16, 16, 16]
    assert in_parts.export("run") == at_once.export("run")


def test_the_rig_receives_the_feedback_that_its_retention_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(agent("FIFO[PER]").feedback) == list(agent("MinError[PER]").feedback) == ["td"]
    a = agent("MaxKLDiv[Uniform]")
    assert list(a.feedback) == ["td", "kl"]
    with pytest.raises(ValueError, match="does not provide KL divergence"):
        learn_and_collect(a, 1)
    update = a._algorithm.update

    def with_kl(batches: Minibatches) -> Signals:
        return update(batches)._replace(kl=batches.reward)

    monkeypatch.setattr(a._algorithm, "update", with_kl)
    (batch,) = a.learn(3)
    assert batch.values.shape == (2, 48)
    assert batch.values[1].tolist() == a._mirror.storage.reward[batch.slots].tolist()


def test_it_is_ready_once_the_memory_holds_a_minibatch() -> None:
    assert not agent(n_stored=15).has_minibatch
    assert agent(n_stored=16).has_minibatch


def test_the_same_seed_learns_the_same_and_another_seed_does_not() -> None:
    original, second, other = agent(seed=1), agent(seed=1), agent(seed=2)
    assert learn_and_collect(original, 50) == learn_and_collect(second, 50)
    assert original.export("run") == second.export("run")
    assert learn_and_collect(other, 50) != learn_and_collect(agent(seed=1), 50)


def test_policies_have_the_next_id_and_the_contract_of_the_rig() -> None:
    a = agent()
    learn_and_collect(a, 5)
    for policy_id in (1, 2):
        model = a.export("run-7")
        metadata = {p.key: p.value for p in onnx.load_from_string(model).metadata_props}
        contract = json.loads(metadata[METADATA_KEY])
        assert (contract["policy_id"], contract["parent_run"], contract["training_step"]) == (policy_id, "run-7", 5)
        a.newest_policy_id = policy_id  # the rig accepted it
        assert (contract["rig"], contract["rate_hz"]) == (RUN.rig.name, RUN.rate_hz)


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_policies_of_the_hidden_pendulum_fit_it_and_no_other(name: str) -> None:
    config = load_run("pendulum-hidden")
    if name == "sac":
        config = msgspec.structs.replace(config, exploration=OwnNoise())
    small_settings = {"td3": {"hidden": [8, 8], "batch": 16}, "sac": {"hidden": [8], "batch": 16}, "ddpg": {}}
    settings = msgspec.convert(
        {"algorithm": name, name: small_settings[name], "updates_per_episode": 1}, LearnerSettings
    )
    mirror = Mirror(CAPACITY, layout_of(config), cyclic=True)
    rng = np.random.default_rng(0)
    for slot in range(CAPACITY):
        x = rng.uniform(-1, 1, 9)
        mirror.storage.insert(slot, x[:4], x[4:5], -1.0, x[5:], behaviour=np.ones(mirror.storage.layout.n_behaviour))
    a = Agent(config, settings, mirror)
    a.on_write(np.arange(CAPACITY))
    assert all(np.isfinite(batch.values).all() for batch in a.learn(2))
    assert isinstance(admission_verdict(a.export("run"), config), Admitted)
    verdict = admission_verdict(a.export("run"), msgspec.structs.replace(config, task=RUN.task))
    assert isinstance(verdict, Refused)
    assert "observations are ['cos_angle', 'sin_angle', 'cos_angle-1', 'sin_angle-1']" in verdict.reason


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
def test_it_continues_from_its_saved_state_without_a_difference(strategy: str, tmp_path: Path) -> None:
    original = agent(strategy)
    original.begin_episode(1, -3.0)
    learn_and_collect(original, 20)
    original.newest_policy_id, original.last_completed_episode = 1, 3
    original.save(tmp_path / "learner.npz")
    resumed = agent(strategy)
    learn_and_collect(resumed, 7)
    assert resumed.restore(tmp_path / "learner.npz")
    resumed.catch_up()
    assert (resumed.updates, resumed.newest_policy_id, resumed.last_completed_episode) == (20, 1, 3)
    for either in (original, resumed):
        either.begin_episode(2, 4.0)
    assert learn_and_collect(resumed, 20) == learn_and_collect(original, 20)
    assert resumed.export("run") == original.export("run")


def test_without_a_saved_state_it_is_unchanged(tmp_path: Path) -> None:
    a = agent()
    assert not a.restore(tmp_path / "learner.npz")
    assert learn_and_collect(a, 10) == learn_and_collect(agent(), 10)


def test_a_damaged_or_foreign_state_is_not_restored(tmp_path: Path) -> None:
    good_path, path = tmp_path / "good.npz", tmp_path / "learner.npz"
    agent().save(good_path)
    raw = good_path.read_bytes()
    with zipfile.ZipFile(good_path) as archive:
        largest_entry = max(archive.infolist(), key=lambda info: info.file_size)
    middle_offset = largest_entry.header_offset + largest_entry.file_size // 2  # within its data
    damaged_bytes = raw[:middle_offset] + bytes([raw[middle_offset] ^ 0xFF]) + raw[middle_offset + 1 :]
    for data in (
        b"",
        raw[:10],
        raw[:middle_offset],
        raw[:-30],
        damaged_bytes,
        b"PK\x03\x04" + bytes(50),
        b"\x80\x04N.",
        b"text",
    ):
        path.write_bytes(data)
        assert not agent().restore(path)
    np.savez(path, policies=np.array(1))
    assert not agent().restore(path)


def test_a_partially_matching_state_changes_nothing(tmp_path: Path) -> None:
    path, other = tmp_path / "learner.npz", agent()
    learn_and_collect(other, 10)
    other.save(path)
    with np.load(path) as state_archive:
        partial_state = {name: state_archive[name] for name in state_archive.files if not name.endswith("adam/critic")}
    np.savez(path, **partial_state)
    a = agent()
    assert not a.restore(path)
    assert (a.updates, a.export("run")) == (0, agent().export("run"))


def test_saving_replaces_the_previous_state_atomically(tmp_path: Path) -> None:
    path = tmp_path / "learner.npz"
    a = agent()
    a.save(path)
    learn_and_collect(a, 3)
    a.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["learner.npz"]
    resumed = agent()
    assert resumed.restore(path)
    assert resumed.updates == 3


def test_if_the_memory_has_grown_the_networks_are_kept_and_the_sampler_restarts(tmp_path: Path) -> None:
    original = agent("FULL[PER]")
    learn_and_collect(original, 20)
    original.save(tmp_path / "learner.npz")
    config = msgspec.structs.replace(RUN, seed=0, episodes=10, selection=Selection("FULL[PER]", 2 * CAPACITY))
    settings = LearnerSettings(ddpg=DdpgConfig(), updates_per_episode=100)
    larger_agent = Agent(config, settings, Mirror(2 * CAPACITY, Layout(2, 1), cyclic=True))
    assert larger_agent.restore(tmp_path / "learner.npz")
    assert larger_agent.sampler_was_reset
    assert larger_agent.updates == 20
    assert larger_agent.export("run") == original.export("run")


@pytest.mark.parametrize(
    ("n_restored", "identity", "is_kept"),
    [(CAPACITY, b"one", True), (CAPACITY - 1, b"one", False), (CAPACITY, b"two", False)],
)
def test_a_sampler_is_kept_for_a_memory_with_all_writes_that_it_knows(
    tmp_path: Path, n_restored: int, identity: bytes, is_kept: bool
) -> None:
    original = agent()
    original.attach_memory(b"one", {})
    original.catch_up()
    learn_and_collect(original, 20)
    original.save(tmp_path / "learner.npz")
    resumed = agent()
    assert resumed.restore(tmp_path / "learner.npz")
    resumed.attach_memory(b"another", {identity: n_restored})
    resumed.catch_up()
    assert resumed.sampler_was_reset is not is_kept
    assert (learn_and_collect(resumed, 5)[0] == learn_and_collect(original, 5)[0]) is is_kept


@pytest.mark.parametrize("strategy", ["FIFO[NERS]", "FIFO[ERO]"])
def test_the_learned_state_of_a_sampler_is_kept_when_it_restarts(strategy: str) -> None:
    a = agent(strategy)
    a.attach_memory(b"one", {})
    a.catch_up()
    for episode in range(1, 4):
        a.begin_episode(episode, float(episode))
        learn_and_collect(a, 20)
    state_before, fresh_state = a._sampler.learned_state(), agent(strategy)._sampler.learned_state()
    assert any((state_before[name] != fresh_state[name]).any() for name in state_before)
    a.attach_memory(b"another", {b"one": CAPACITY - 1})
    assert a.sampler_was_reset
    state_after = a._sampler.learned_state()
    assert {name: value.tolist() for name, value in state_after.items()} == {
        n: v.tolist() for n, v in state_before.items()
    }
    a.catch_up()
    learn_and_collect(a, 5)


def test_networks_are_kept_if_the_samplers_state_does_not_fit_a_grown_memory(tmp_path: Path) -> None:
    original = agent("FULL[NERS]")
    for episode in range(1, 4):
        original.begin_episode(episode, float(episode))
        learn_and_collect(original, 20)
    original.save(tmp_path / "learner.npz")
    config = msgspec.structs.replace(RUN, seed=0, episodes=10, selection=Selection("FULL[NERS]", 2 * CAPACITY))
    ners = NersSettings(hidden=(8, 6), score=(5,))
    settings = LearnerSettings(ddpg=DdpgConfig(), updates_per_episode=100, ners=ners)
    larger_agent = Agent(config, settings, Mirror(2 * CAPACITY, Layout(2, 1), cyclic=True))
    assert larger_agent.restore(tmp_path / "learner.npz")
    assert larger_agent.sampler_was_reset
    state_before, state_after = original._sampler.learned_state(), larger_agent._sampler.learned_state()
    assert {name: value.tolist() for name, value in state_after.items()} == {
        n: v.tolist() for n, v in state_before.items()
    }


def test_batches_of_a_memory_without_an_identity_are_not_learned_twice() -> None:
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


def _refer_agent(seed: int) -> tuple[Agent, Mirror]:
    """An agent under ReF-ER with a memory that includes the behaviour policies."""
    config = msgspec.structs.replace(
        RUN, seed=seed, episodes=10, exploration=OwnNoise(), selection=Selection(capacity=64)
    )
    mirror = Mirror(CAPACITY, Layout(2, 1, behaviour=True), cyclic=True)
    new_agent = Agent(config, LearnerSettings(updates_per_episode=1, refer=ReferSettings()), mirror)
    rng = np.random.default_rng(1)
    for slot in range(CAPACITY):
        x = rng.uniform(-1, 1, 7).tolist()
        behaviour = (x[6], 0.2, x[2])
        mirror.storage.insert(slot, x[:2], x[2:3], -100 * x[5], x[3:5], behaviour=behaviour)
    return new_agent, mirror


def test_under_refer_it_exports_a_gaussian_and_keeps_its_notes_over_a_restart(tmp_path: Path) -> None:
    (original, _), (second, mirror) = _refer_agent(1), _refer_agent(2)
    original.catch_up()
    learn_and_collect(original, 30)
    assert original._notes is not None
    assert (original._notes.stored_column(0, "rho") != 1.0).mean() > 0.5
    original.save(tmp_path / "state.npz")
    assert second.restore(tmp_path / "state.npz")
    assert not second.sampler_was_reset
    second.catch_up()  # nothing is new
    assert learn_and_collect(original, 20) == learn_and_collect(second, 20)
    verdict = admission_verdict(second.export("run"), msgspec.structs.replace(RUN, exploration=OwnNoise()))
    assert isinstance(verdict, Admitted)
    assert verdict.contract.behaviour == GAUSSIAN
    mirror.storage.insert(0, (0.0, 0.0), (0.0,), 0.0, (0.0, 0.0), behaviour=(0.0, 0.2, 0.0))
    second.catch_up()
    assert second._notes is not None
    assert second._notes.stored_column(0, "rho")[0] == 1.0


def test_after_the_last_episode_steps_have_length_0_and_no_policy_gets_worse() -> None:
    config = msgspec.structs.replace(RUN, episodes=1, exploration=OwnNoise(), selection=Selection(capacity=CAPACITY))
    settings = msgspec.convert({"algorithm": "ppo", "ppo": {"hidden": [8], "steps": 24, "batch": 8}}, LearnerSettings)
    mirror = Mirror(CAPACITY, Layout(2, 1, behaviour=True), cyclic=True)
    agent = Agent(config, settings, mirror)
    state_before = agent._algorithm.state()
    for step, x in enumerate(np.random.default_rng(1).uniform(-1, 1, (24, 7)).tolist()):
        behaviour = (x[6], 0.2, x[2])
        mirror.storage.insert(step, x[:2], x[2:3], x[5], x[3:5], 0, 1, behaviour=behaviour, episode=3, step=step)
    agent.attach_memory(b"one", {})
    agent.learn_from_batches(lambda: None)
    assert agent.updates == 30
    state_after = agent._algorithm.state()
    assert all(
        (state_after[name] == values).all()
        for name, values in state_before.items()
        if name.startswith(("policy", "value"))
    )


def test_a_partial_batch_and_frozen_ones_survive_a_restart(tmp_path: Path) -> None:
    config = msgspec.structs.replace(RUN, episodes=10, exploration=OwnNoise(), selection=Selection(capacity=CAPACITY))
    section = {"hidden": [8], "steps": 24, "batch": 8, "depth": 2, "draw": "uniform"}
    settings = msgspec.convert({"algorithm": "ppo", "ppo": section}, LearnerSettings)
    samples = np.random.default_rng(1).uniform(-1, 1, (90, 7)).tolist()

    def agent_with(n_gathered: int) -> tuple[Agent, Mirror]:
        mirror = Mirror(CAPACITY, Layout(2, 1, behaviour=True), cyclic=True)
        gather(mirror, n_gathered)
        return Agent(config, settings, mirror), mirror

    def gather(mirror: Mirror, n_gathered: int) -> None:
        for number in range(mirror.storage.inserted, n_gathered):
            x, origin = samples[number], {"episode": 1 + number // 20, "step": number % 20}
            behaviour = (x[6], 0.2, x[2])
            flag = Flag.DEVIATES * (number % 7 == 0)
            mirror.storage.insert(
                number % CAPACITY, x[:2], x[2:3], x[5], x[3:5], flag, 1, behaviour=behaviour, **origin
            )

    original, mirror = agent_with(62)
    original.attach_memory(b"one", {})
    original.learn_from_batches(lambda: None)
    assert original.batches.n_learned == 2
    original.save(tmp_path / "learner.npz")
    resumed, resumed_mirror = agent_with(62)
    assert resumed.restore(tmp_path / "learner.npz")
    resumed.attach_memory(b"another", {b"one": 62})
    heartbeats: list[int] = []
    for either, mirror_of in ((original, mirror), (resumed, resumed_mirror)):
        gather(mirror_of, 90)
        either.learn_from_batches(lambda: heartbeats.append(1))
    assert len(heartbeats) == 2 * 10
    assert resumed.updates == original.updates
    assert resumed.export("run") == original.export("run")
    assert {k: v.tolist() for k, v in resumed.batches.state().items()} == {"position": [72, 3, 0, 11, 4, 11]}
    assert (resumed._algorithm.state()["replayed_advantage"] == original._algorithm.state()["replayed_advantage"]).all()
