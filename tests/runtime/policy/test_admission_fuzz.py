"""Mutated models: any bytes get a verdict, and an admitted model does not break the loop."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.policy.admission import Refused, admit
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment
from tests.lab.mutants.models import MUTATIONS, Loop, Mutate, Subject, campaign, mutated_contract, mutated_weights
from tests.runtime.policy import models
from tests.runtime.samples import PENDULUM

QUICK_MUTANTS, LONG_MUTANTS = 400, 10_000
GROWTH_BYTES = 48 << 20
ORIGINALS = [models.serialized(m) for m in (models.policy(hidden=4), models.wide_policy(), models.linear())]
CONVOLVING = models.serialized(models.convolving())
SUBJECT = Subject(PENDULUM, models.CONTRACT, ORIGINALS)
PROBES = SUBJECT.probes


@pytest.mark.parametrize("mutate", MUTATIONS)
@pytest.mark.parametrize("n_mutants", [QUICK_MUTANTS, pytest.param(LONG_MUTANTS, marks=pytest.mark.study)])
def test_every_mutant_gets_a_verdict_and_well_formed_ones_do_not_harm_the_loop(
    mutate: Mutate, n_mutants: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = campaign(n_mutants, 1, mutate, tmp_path, SUBJECT)
    assert capfd.readouterr() == ("", "")
    verdicts = outcome.verdicts
    assert sum(verdicts.values()) == n_mutants
    assert verdicts["admitted"] > 0
    assert outcome.unbuilt == 0, "admission accepts only what the loop can run"
    assert outcome.acted == verdicts["admitted"] + verdicts["finite"] + verdicts["bounds"]
    if mutate is mutated_weights:
        assert outcome.rolled_back > n_mutants / 20, "well-formed models with bad numbers are rolled back"
        assert set(verdicts) <= {"admitted", "finite", "bounds"}
    elif mutate is not mutated_contract:  # a number and a name are harmless, however odd
        assert n_mutants - verdicts["admitted"] > n_mutants / 4
    assert outcome.grown_bytes < GROWTH_BYTES, outcome
    with capfd.disabled():
        if n_mutants == LONG_MUTANTS:
            print(f"\n{mutate.__name__}: {outcome}")


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_mutants_of_stochastic_recurrent_and_convolutional_policies_do_not_harm_the_loop_either(
    mutate: Mutate, tmp_path: Path
) -> None:
    own_noise = msgspec.structs.replace(PENDULUM, exploration=OwnNoise())
    stochastic = Subject(own_noise, models.STOCHASTIC, [models.serialized(models.stochastic())])
    recurrent = Subject(PENDULUM, models.CONTRACT, [models.serialized(models.recurrent())])
    convolving = Subject(PENDULUM, models.CONTRACT, [CONVOLVING])
    for name, subject in (("s", stochastic), ("r", recurrent), ("c", convolving)):
        (tmp_path / name).mkdir()
        outcome = campaign(100, 1, mutate, tmp_path / name, subject)
        assert outcome.unbuilt == 0
        assert len(outcome.verdicts) > 1


def test_every_truncation_of_a_model_gets_a_verdict() -> None:
    for data in (*ORIGINALS, CONVOLVING):
        for length in range(0, len(data), 7):
            assert isinstance(admit(data[:length], models.CONTRACT, PROBES), Refused)


def test_from_a_damaged_slot_the_loop_takes_only_what_was_put_there(tmp_path: Path) -> None:
    rng = random.Random(1)
    loop = Loop(tmp_path, SUBJECT)
    segment = Segment.attach(tmp_path / "slot", SLOT_SCHEMA)
    slot = PolicySlot(segment)
    half_slot = (SLOT_BYTES - 64) // 2
    n_refused = 0
    for n in range(2, 200):
        model = ORIGINALS[n % 3]
        slot.put(n, model)
        start = 64 + (slot.version & 1) * half_slot
        for _ in range(rng.randint(1, 4)):
            segment.body[start + rng.choice((8, 12, 16)) + rng.randrange(len(model))] ^= 1 << rng.randrange(8)
        policy = slot.take()
        assert policy is None or policy.model == model
        n_refused += policy is None
        loop.switch.install_newest()
        loop.tick(rng)
    assert n_refused > 150
    slot.close()
