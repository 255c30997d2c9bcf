"""A learner that offers arbitrary policies as fast as it can: the run keeps its data, and its folder remains small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import LinkClient
from onrig.runtime.link.messages import LINK_VERSION, RATE, Attach, Leave, Offer, Verdict
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from onrig.tools.load import load
from tests.lab.rig.processes import REPLAY
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import ENDLESS, Run
from tests.runtime.policy import models

EPISODES = 150
OFFERS = 400
GROWTH_MB = 64.0
"""Growth of the replay process; one path per claimed id would take a thousand times as much."""


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def hostile(config: RunConfig) -> Iterator[bytes]:
    """Valid policies that claim ids, interspersed with junk."""
    for n in range(OFFERS):
        claimed_id = (2147483646, -1, (1 << 63) - 1, n)[n % 4]
        contract = contract_for(config.rig, config.rate_hz, policy_id=claimed_id, parent_run="", training_step=n)
        yield b"%08d" % n if n % 5 == 4 else models.serialized(models.policy(contract=contract, hidden=4))


def test_neither_claimed_ids_nor_junk_nor_a_flood_costs_the_run_data(tmp_path: Path) -> None:
    first = tmp_path / "policy.onnx"
    first.write_bytes(steady_policy(load("pendulum")))
    settings = (*ENDLESS, f"episodes={EPISODES}", "local_learner=false", f"policy={first}", "checkpoint_s=0.2")
    with Run(tmp_path / "run", "pendulum", *settings) as run:
        replay = run.child(REPLAY)
        run.until(lambda: run.shm is not None and (run.shm / "learner").exists(), "the learners' door")
        config = load_resolved(run.folder / "config.yaml")
        offers = list(hostile(config))
        client = LinkClient(f"ipc://{run.shm}/learner", lambda: False)
        client.ask(Attach(LINK_VERSION, b"hostile", "push"))
        run.until(lambda: run.rows(), "the first episode")
        before = resident_mb(replay.pid)
        verdicts: list[Verdict] = []
        for model in offers:
            verdict, _ = client.ask(Offer(0), model)
            assert isinstance(verdict, Verdict)
            verdicts.append(verdict)
        client.post(Leave())
        client.close()
        n_rows = len(run.rows())
        run.until(lambda: len(run.rows()) >= min(n_rows + 20, EPISODES - 5), "checkpoints of all of it")
        assert resident_mb(replay.pid) - before < GROWTH_MB
        assert run.ended() == ExitCode.OK
        assert run.leftover_paths() == []
    assert [int(row["episode"]) for row in run.rows()] == list(range(1, EPISODES + 1))
    assert list((run.folder / "buffer").glob("manifest-*.json"))
    ids = [verdict.policy_id for verdict in verdicts if verdict.accepted]
    assert ids == list(range(2, len(ids) + 2)), "policy 1 was the file"
    counts = msgspec.convert(run.summary()["policies"], dict[str, int])
    assert counts["too_soon"] == sum(verdict.stage == RATE for verdict in verdicts) > OFFERS / 2
    assert counts["offered"] + counts["too_soon"] == OFFERS + 1
    assert {int(row["policy_id"]) for row in run.rows()} <= set(run.policies()) <= {1, *ids}
