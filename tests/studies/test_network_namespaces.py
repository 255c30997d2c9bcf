"""Rig and learner in two network namespaces: 50 ms each way, 2 % loss, a cable pulled for 30 s.

If this user may not create namespaces, the study is skipped.  Delay and loss come from a proxy next to the learner
(some kernels lack netem); pulling the cable sets the link between the namespaces down.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from onrig.tools.key_folder import make_keys
from tests.lab.rig.processes import until

RIG_IP, LEARNER_IP, PORT = "10.213.7.1", "10.213.7.2", 5599
BEFORE_S, CUT_S, AFTER_S = 30.0, 30.0, 40.0
SETTINGS = (
    "device.pace=realtime",
    "task.episode_s=2",
    "episodes=100000",
    "evaluate_every=0",
    "selection={strategy: 'FIFO[Uniform]', capacity: 2000}",
    "learner.updates_per_episode=20",
)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """Two namespaces connected by a cable; names of the rig's and the learner's."""
    mark = os.getpid()
    rig, learner = f"onrig-rig-{mark}", f"onrig-learner-{mark}"
    with ExitStack() as stack:
        try:
            for name in (rig, learner):
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            ip("-n", rig, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", learner)
            for name, address in ((rig, RIG_IP), (learner, LEARNER_IP)):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                for device in ("cable", "lo"):
                    ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield rig, learner


def inside(space: str, module: str, *arguments: str) -> list[str]:
    return ["ip", "netns", "exec", space, sys.executable, "-m", module, *arguments]


@pytest.mark.study
def test_learning_continues_the_mirror_equals_the_memory_and_no_tick_is_missed(
    tmp_path: Path, spaces: tuple[str, str]
) -> None:
    rig, learner = spaces
    keys, run, out = tmp_path / "keys", tmp_path / "run", tmp_path / "learner.out"
    make_keys(keys)
    more = [word for override in SETTINGS for word in ("--set", override)]
    link = ["--set", "local_learner=false", "--set", f"link.listen=tcp://{RIG_IP}:{PORT}", "--set", f"link.keys={keys}"]
    with ExitStack() as stack:

        def background(command: list[str], output: Path) -> subprocess.Popen[bytes]:
            file = stack.enter_context(output.open("wb"))
            popen = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file))
            stack.callback(popen.kill)
            return popen

        rig_run = background(
            inside(rig, "onrig.tools.cli", "run", "pendulum", "--run-dir", str(run), *more, *link), tmp_path / "run.out"
        )
        wire = tmp_path / "wire.out"
        background(
            inside(learner, "onrig.tools.bench.link.network", f"{RIG_IP}:{PORT}", "--delay-ms", "50", "--loss", "0.02"),
            wire,
        )
        endpoint = until(lambda: wire.read_text().strip() or None, "the proxy to listen")
        remote = background(
            inside(learner, "onrig.tools.cli", "learn", "pendulum", "--connect", endpoint, "--keys", str(keys), *more),
            out,
        )

        def policies() -> int:
            return len(list((run / "policies").glob("*.onnx")))

        until(lambda: policies() >= 2, "the second policy")
        time.sleep(BEFORE_S)
        before = policies()
        ip("-n", rig, "link", "set", "cable", "down")
        time.sleep(CUT_S)
        during = policies()
        ip("-n", rig, "link", "set", "cable", "up")
        time.sleep(AFTER_S)
        after = policies()
        subprocess.run([sys.executable, "-m", "onrig.tools.cli", "stop", str(run)], check=True, timeout=60)
        assert rig_run.wait(60) == 130
        assert remote.wait(60) == 0, out.read_text()
    summary = msgspec.json.decode((run / "summary.json").read_bytes(), type=dict[str, object])
    buffer = msgspec.convert(summary["buffer"], dict[str, object])
    print(f"\npolicies {before} before the cut, {during} at its end, {after} after; {summary['ticks']} ticks,")
    print(f"{summary['missed_ticks']} missed; {out.read_text()}")
    assert after > during, "learning goes on"
    assert re.findall(r"hash ([0-9a-f]+)", out.read_text()) == [buffer["digest"]]
    assert summary["missed_ticks"] == 0
