"""Initial experiences (``selection.seed_from``) and networks (``learner.start_from``) from an earlier run.

Both must fit this run: its signals must have the same names, units, ranges and order, and its rate and plant must be
the same. Experiences also need the same reward.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.screening import SCREENING
from onrig.learner.settings import StartFrom, learner_settings
from onrig.runtime import registry
from onrig.runtime.config.pieces import read_copies
from onrig.runtime.config.problem import ConfigError, Finding, format_path
from onrig.runtime.exit_codes import Failure
from onrig.runtime.files import read_fields
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.settings import SeedFrom
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.memory.transitions import TransitionBuilder, Transitions
from onrig.runtime.policy.contract import contract_for, contract_mismatch
from onrig.runtime.replay.seeds import EXPERIENCES, FIRST_EPISODE, NETWORKS, digest, encode
from onrig.runtime.run_changes import differences
from onrig.runtime.run_config import RunConfig, capacity_of, record_layout, to_plain_data
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.task import episode_steps
from onrig.tools.exporting.minari_format import is_minari, read_records
from onrig.tools.plugins import plugin_difference, third_party_plugins
from onrig.tools.pretrained import (
    PRETRAINING_FILE,
    expected_score,
    read_pretraining,
    screening_plants,
    screening_problem,
)

_SEED_PATH: Final = ("selection", "seed_from")
_START_PATH: Final = ("learner", "start_from")
_SCREENING_PATH: Final = ("learner", "screening")
_REWARD_SECTIONS: Final = ("reward", "terminate", "terminations")
"""Task settings that determine an experience's reward and whether it ends the episode."""
_PLUGINS: Final = (registry.REWARDS, registry.TERMINATIONS, registry.INPUT_TRANSFORMS, registry.PLANTS)
"""Plugin groups whose code determines the experiences."""
_MAX_SHOWN: Final = 90

Arrays = Mapping[str, NDArray[Any]]


class CannotBegin(Failure):
    """The experiences or networks of the earlier run cannot be used."""


class Beginning(NamedTuple):
    """Initial state of a run."""

    config: RunConfig
    """Configuration, with the checksums of experiences and networks filled in."""
    files: dict[str, bytes]
    """Content of the initial files in the run folder, by path."""
    facts: dict[str, object]
    """Entry for ``meta.json``; empty if the run has neither initial experiences nor initial networks."""


def beginning_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems with a run's initial experiences and networks that the configurations alone reveal."""
    learner, seeds = learner_settings(config.learner), config.selection.seeds
    if seeds is None and parse_strategy(config.selection.strategy).keeps_seeds:
        requirement = f"{config.selection.strategy} samples experiences of an earlier run: set {'.'.join(_SEED_PATH)}"
        yield ("selection", "strategy"), f"{requirement} at selection.strategy"
    if seeds is not None:
        if learner.algorithm_config.batch_steps:
            yield (
                _SEED_PATH,
                f"{learner.algorithm} learns from its latest policies: omit this setting, at {'.'.join(_SEED_PATH)}",
            )
        else:
            yield from _mismatch_findings(_SEED_PATH, seeds.path, config)
        if problem := _capacity_problem(config):
            yield _SEED_PATH, f"{problem} at {'.'.join(_SEED_PATH)}"
    if learner.screening and (problem := screening_problem(learner.start)):
        yield _SCREENING_PATH, f"{problem} at {'.'.join(_SCREENING_PATH)}"
    if learner.start is not None and config.local_learner:
        yield from _mismatch_findings(_START_PATH, learner.start.path, config)
    elif learner.start is not None:
        yield from start_findings(config)


def start_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield a finding if learner.start_from is set for a remote learner."""
    if learner_settings(config.learner).start is not None:
        yield (
            _START_PATH,
            f"only a local learner can start from networks: omit this setting, at {'.'.join(_START_PATH)}",
        )


def with_resolved_origins(config: RunConfig, run: RunConfig) -> RunConfig:
    """Return ``config`` with each origin resolved as in the resumed ``run``, where both name the same origin."""
    origin, run_origin = config.selection.seeds, run.selection.seeds
    if (
        origin is not None
        and run_origin is not None
        and origin in (SeedFrom(run_origin.path), SeedFrom(run_origin.path, run_origin.most))
    ):
        selection = msgspec.structs.replace(config.selection, seed_from=run.selection.seed_from)
        config = msgspec.structs.replace(config, selection=selection)
    start, run_start = (learner_settings(c.learner).start for c in (config, run))
    if start is not None and run_start is not None and start == StartFrom(run_start.path):
        config = msgspec.structs.replace(config, learner={**config.learner, "start_from": run.learner["start_from"]})
    return config


def _mismatch_findings(location: tuple[str, str], path: str, config: RunConfig) -> Iterator[Finding]:
    try:
        source = _load_config(Path(path))
    except CannotBegin as error:
        yield location, f"{error} at {'.'.join(location)}"
        return
    difference = mismatch(source, config, takes_experiences=location == _SEED_PATH)
    if difference := difference or plugin_difference(_meta(Path(path)), third_party_plugins(source), _PLUGINS):
        yield location, f"'{path}' is incompatible with this run: {difference} at {'.'.join(location)}"


def _load_config(folder: Path) -> RunConfig:
    if not (folder / "config.yaml").is_file():
        raise CannotBegin(f"'{folder}' contains neither a run nor an export of one (config.yaml)")
    try:
        return load_resolved(folder / "config.yaml")
    except ConfigError as error:
        raise CannotBegin(str(error.problems[0])) from None


def mismatch(source: RunConfig, config: RunConfig, *, takes_experiences: bool) -> str | None:
    """Describe the first difference, with both values, that prevents this run from using another run's experiences or
    networks. Return None if it can use them.
    """
    contracts = (
        contract_for(c.rig, c.rate_hz, policy_id=0, parent_run="", training_step=0, signals=c.signals)
        for c in (source, config)
    )
    if difference := contract_mismatch(*contracts):
        return difference.replace("the rig has", "this run has").replace("the rig runs at", "this run is at")
    if difference := _plant_difference(source, config):
        return difference
    for section in _REWARD_SECTIONS if takes_experiences else ():  # terminations may add to the reward
        if difference := _first_difference(
            section, *(msgspec.to_builtins(c.task).get(section) for c in (source, config))
        ):
            return difference
    if takes_experiences and source.stochastic != config.stochastic:
        kinds = ["stochastic" if c.stochastic else "deterministic" for c in (source, config)]
        return f"policies are {kinds[0]}; those of this run are {kinds[1]}"
    algorithms = [learner_settings(c.learner).algorithm for c in (source, config)]
    if not takes_experiences and algorithms[0] != algorithms[1]:
        return f"algorithm is {algorithms[0]}; this run has {algorithms[1]}"
    return None


def _plant_difference(source: RunConfig, config: RunConfig) -> str | None:
    """Describe how the plants of two twins differ or, if ``source`` is a pretraining, how the identifications differ.
    The plants are not compared if either run has no twin, so that experiences from a twin may seed a run on its rig.
    """
    twins = [c.device.twin for c in (source, config)]
    if twins[0] is not None and twins[0].get("samples"):
        hashes = [None if c.identified is msgspec.UNSET else c.identified for c in (source, config)]
        return _first_difference("identified", *hashes)
    plants = [None if twin is None else twin.get("plant") for twin in twins]
    return None if None in plants else _first_difference("plant", *plants)


def _first_difference(name: str, source_value: object, value: object) -> str | None:
    for path, earlier_value, current_value in differences((name,), source_value, value):
        value_texts = [msgspec.json.encode(value).decode()[:_MAX_SHOWN] for value in (earlier_value, current_value)]
        return f"{format_path(path)} is {value_texts[0]}; this run has {value_texts[1]}"
    return None


def _capacity_problem(config: RunConfig) -> str | None:
    """Return why a memory that never discards experiences has no room for seeds, or None if it has."""
    if _seed_capacity(config) is None or _seed_capacity(config):
        return None
    run_length = config.episodes * episode_steps(config.task, config.rate_hz)
    conflict = f"FULL keeps all {run_length} experiences of the run, and the capacity is {capacity_of(config)}"
    return f"{conflict}: raise selection.capacity to make room for the seeds, or omit it"


def _seed_capacity(config: RunConfig) -> int | None:
    """Return the maximum number of seeds in the memory, or None if it is unlimited."""
    selection = config.selection
    strategy = parse_strategy(selection.strategy)
    if not strategy.keeper.keeps_all:
        capacity = capacity_of(config)
        return capacity // 2 if strategy.keeps_seeds else capacity
    if selection.capacity is None and selection.capacity_bytes is None:
        return None
    return max(0, capacity_of(config) - config.episodes * episode_steps(config.task, config.rate_hz))


def read_beginning(config: RunConfig) -> Beginning:
    """Read the initial experiences and networks of a new run. Raises CannotBegin if they cannot be used.

    `beginning_findings` must have found no problem with ``config``.
    """
    files = read_copies(to_plain_data(config))
    facts: dict[str, object] = {}
    if (seeds := config.selection.seeds) is not None:
        transitions = _read_experiences(seeds, config)
        sha256 = _verify_checksum(_SEED_PATH, seeds, transitions._asdict())
        files[EXPERIENCES] = encode(transitions._asdict())
        fact = {"path": str(Path(seeds.path).resolve()), "run": _run_identity(Path(seeds.path)), "sha256": sha256}
        facts["experiences"] = {**fact, "experiences": len(transitions.reward)}
        resolved_seeds = SeedFrom(seeds.path, len(transitions.reward), sha256)
        selection = msgspec.structs.replace(config.selection, seed_from=resolved_seeds)
        config = msgspec.structs.replace(config, selection=selection)
    learner = learner_settings(config.learner)
    if (start := learner.start) is not None:
        networks, episode = _read_networks(Path(start.path), config)
        sha256 = _verify_checksum(_START_PATH, start, networks)
        files[NETWORKS] = encode(networks)
        fact = {"path": str(Path(start.path).resolve()), "run": _run_identity(Path(start.path)), "sha256": sha256}
        expectation: dict[str, object] = {}
        if (Path(start.path) / PRETRAINING_FILE).is_file():
            record = read_pretraining(Path(start.path))
            if not record.evaluations:
                raise CannotBegin(
                    f"learner.start_from: '{start.path}' contains a pretraining run without an evaluation"
                )
            expectation["expected"] = expected_score(record)
            if learner.screening:
                plants = screening_plants(record, _load_config(Path(start.path)), learner.screening)
                files[SCREENING] = msgspec.json.encode(plants)
        facts["networks"] = {**fact, "episode": episode, **expectation}
        section = {**config.learner, "start_from": {"path": start.path, "sha256": sha256}}
        config = msgspec.structs.replace(config, learner=section)
    return Beginning(config, files, {"start": facts} if facts else {})


def _verify_checksum(location: tuple[str, str], origin: SeedFrom | StartFrom, content: Arrays) -> str:
    checksum = digest(content)
    if origin.sha256 is not msgspec.UNSET and origin.sha256 != checksum:
        reason = f"'{origin.path}' has changed: its content has the SHA-256 {checksum}, expected {origin.sha256}"
        raise CannotBegin(f"{'.'.join(location)}: {reason}")
    return checksum


def _run_identity(folder: Path) -> str:
    """Return the identity of the run in a run folder or an export."""
    return str(_meta(folder).get("run") or "")


def _meta(folder: Path) -> dict[str, object]:
    """Return ``meta.json`` of a run, or the corresponding part of an export's ``provenance.json``."""
    if meta := read_fields(folder / "meta.json"):
        return meta
    provenance = read_fields(folder / "provenance.json")
    return {**provenance, "run": provenance.get("run_id")}


def _read_experiences(seeds: SeedFrom, config: RunConfig) -> Transitions:
    """Read the newest measured experiences that the memory accepts and has room for, oldest first."""
    from onrig.tools.api.run_data import DataMissing, RunData

    folder = Path(seeds.path)
    try:
        if is_minari(folder):
            transitions = _read_data_set(folder)
        elif (folder / "experiences.parquet").is_file():
            transitions = _to_transitions(config, _read_export(folder))
        else:
            transitions = _to_transitions(config, RunData(folder, _load_config(folder)).experiences)
    except DataMissing as error:
        raise CannotBegin(f"selection.seed_from: {error}") from None
    excluded_flags = Flag.SYNTHETIC | (Flag.INTERVENED if config.selection.intervened == "drop" else Flag(0))
    measured_rows = np.flatnonzero(transitions.flags & np.uint32(excluded_flags) == 0)
    max_stored = _seed_capacity(config)
    max_count = len(measured_rows) if seeds.most is msgspec.UNSET else seeds.most
    rows = measured_rows[
        max(0, len(measured_rows) - (max_count if max_stored is None else min(max_count, max_stored))) :
    ]
    if not len(rows):
        raise CannotBegin(f"selection.seed_from: '{folder}' contains no measured experiences")
    selection = Transitions._make(column[rows] for column in transitions)
    # renumber them, so that no number is that of an episode or policy of this run
    _, episodes = np.unique(selection.episode, return_inverse=True)
    return selection._replace(
        policy_id=np.zeros(len(rows), np.uint32), episode=(episodes + FIRST_EPISODE).astype(np.uint32)
    )


def _to_transitions(config: RunConfig, table: Arrays) -> Transitions:
    """Convert the experiences of another run's memory to transitions."""
    flags = sum(table[str(flag.name).lower()].astype(np.uint32) * np.uint32(flag) for flag in Flag)
    n = len(table["reward"])
    behaviour = [table[name] for name in ("mean", "std", "drawn")] if config.stochastic else [np.zeros((n, 0), "f4")]
    return Transitions(
        observation=table["observation"],
        action=table["action"],
        reward=table["reward"],
        next_observation=table["next_observation"],
        flags=np.asarray(flags, np.uint32),
        policy_id=table["policy_id"].astype(np.uint32),
        exploration=table["exploration"],
        episode=table["episode"],
        step=table["step"],
        behaviour=np.concatenate(behaviour, axis=1),
    )


def _read_export(folder: Path) -> Arrays:
    from onrig.tools.api.tables import experience_schema

    try:
        from onrig.tools.exporting.table_formats import read_table

        return read_table(folder / "experiences.parquet", experience_schema(_load_config(folder)))
    except ImportError:
        raise CannotBegin("selection.seed_from: reading Parquet needs pyarrow: pip install 'onrig[data]'") from None
    except (OSError, KeyError, ValueError) as error:
        raise CannotBegin(f"selection.seed_from: {folder / 'experiences.parquet'}: {error}") from None


def _read_data_set(folder: Path) -> Transitions:
    """Read the experiences of the training episodes in a Minari data set, all of which are measured."""
    source_config = _load_config(folder)
    try:
        records = read_records(folder, record_layout(source_config))
    except ImportError:
        raise CannotBegin("selection.seed_from: reading Minari needs minari: pip install 'onrig[data]'") from None
    except (OSError, KeyError, ValueError) as error:
        raise CannotBegin(f"selection.seed_from: {folder / 'data'}: {error}") from None
    return TransitionBuilder(source_config.rig, source_config.signals).add(records)


def _read_networks(folder: Path, config: RunConfig) -> tuple[Arrays, int]:
    """Read a learner's final networks and optimisers, and the number of the last episode before they were saved."""
    from onrig.learner.agent import read_networks
    from onrig.learner.algorithms import algorithm_for
    from onrig.learner.samplers import sub_state
    from onrig.learner.states import States, state_fault
    from onrig.runtime.random_streams import Role, stream

    states, run, settings = (
        States(folder / "learner", sys.stderr.write),
        _run_identity(folder),
        learner_settings(config.learner),
    )
    intact_episodes = (episode for episode in states.episodes() if state_fault(states.path(episode), run) is None)
    episode = next(intact_episodes, None)
    if episode is None:
        raise CannotBegin(f"learner.start_from: '{folder}' contains no learner state (learner/)")
    try:
        networks = read_networks(states.path(episode), settings.algorithm)
        random_streams = [stream(config.seed, Role.NETWORKS)]
        algorithm = algorithm_for(settings, len(config.signals), len(config.rig.actuators), random_streams)
        algorithm.restore(sub_state(networks, f"{settings.algorithm}/"))
    except (OSError, KeyError, ValueError) as error:
        raise CannotBegin(
            f"learner.start_from: {states.path(episode)} does not fit {settings.algorithm}: {error}"
        ) from None
    return networks, episode
