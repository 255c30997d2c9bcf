"""A learner on "another machine": tcp, keys, a network that is cut; and the messages about wrong keys."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import load_learner_keys, pair_fingerprint
from onrig.runtime.shm.board import Word
from onrig.tools.bench.link.network import LossyLink
from onrig.tools.key_folder import make_keys
from tests.lab.rig.processes import PATIENCE_S
from tests.lab.rig.run import ENDLESS, Run
from tests.processes.observer import digest_of
from tests.tools.test_bad_start import WITHOUT_LEARNER, start

TCP = ("local_learner=false", "link.listen=tcp://127.0.0.1:0")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def listener_endpoint(run: Run) -> str:
    found = re.compile(r"tcp://[\d.]+:\d+")
    return run.until(lambda: found.search(run.output), "it to say where it listens")[0]


@contextmanager
def learner(out: Path, endpoint: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """``onrig learn`` for a run of ENDLESS, with its output in a file."""
    settings = [word for override in ENDLESS for word in ("--set", override)]
    command = [
        sys.executable,
        "-m",
        "onrig.tools.cli",
        "learn",
        "pendulum",
        "--connect",
        endpoint,
        *arguments,
        *settings,
    ]
    with out.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as popen:
        try:
            yield popen
        finally:
            popen.kill()


def test_a_remote_learner_continues_after_a_disconnection_and_its_mirror_equals_the_memory(
    tmp_path: Path, keys: Path
) -> None:
    out = tmp_path / "learner.out"
    with Run(tmp_path / "run", "pendulum", *ENDLESS, *TCP, f"link.keys={keys}") as run:
        with (
            LossyLink(parse_tcp(listener_endpoint(run)).port, delay_s=0.005, loss=0.02, stall_s=0.02) as wire,
            learner(out, wire.endpoint, "--keys", str(keys)) as popen,
        ):
            run.until(lambda: run.word(Word.POLICY) >= 2, "the second policy to act")
            last, ticks = run.word(Word.POLICY), run.word(Word.TICK)
            wire.cut()
            run.until(lambda: wire.n_rejected >= 3, "it to try again")
            run.until_ticks(100)
            assert run.word(Word.TICK) > ticks, "the loop continues"
            wire.restore()
            run.until(lambda: run.word(Word.POLICY) >= last + 2, "its next policies to act")
            assert popen.poll() is None
            run.process.kill(signal.SIGINT)
            assert run.ended() == ExitCode.INTERRUPTED
            assert popen.wait(PATIENCE_S) == ExitCode.OK, out.read_text()
        assert f"hash {digest_of(run)}" in out.read_text()
        assert "reconnected; continuing from write" in out.read_text()
        learner_name = f"learner:{pair_fingerprint(load_learner_keys(keys).pair)}"
        assert {event["learner"] for event in run.events("policy_admitted")} == {learner_name}
        assert [event["learner"] for event in run.events("learner_attached")] == [learner_name]
        assert [event["pushes"] for event in run.events("learner_resumed")] == [True]
        assert run.events("policy_refused") == []


def test_a_learner_whose_key_is_not_listed_ends_with_a_message_and_the_rig_records_it(
    tmp_path: Path, keys: Path
) -> None:
    make_keys(tmp_path / "others")
    unlisted = tmp_path / "others" / "learner"
    (unlisted / "rig.key").write_bytes((keys / "learner" / "rig.key").read_bytes())
    out = tmp_path / "learner.out"
    with Run(tmp_path / "run", "pendulum", *ENDLESS, *TCP, f"link.keys={keys}") as run:
        with learner(out, listener_endpoint(run), "--keys", str(unlisted)) as popen:
            assert popen.wait(PATIENCE_S) == ExitCode.HARDWARE
        lines = out.read_text().splitlines()
        assert len(lines) == 1, lines
        assert "does not accept this learner's key" in lines[0]
        assert pair_fingerprint(load_learner_keys(unlisted).pair) in lines[0]
        run.until(lambda: run.events("learner_turned_away") or None, "the rig to note it")


def test_a_rig_without_a_learner_prints_its_address(tmp_path: Path) -> None:
    plain = ("local_learner=false", "link.listen=tcp://localhost:0", "link.allow_plain_loopback=true")
    with Run(tmp_path / "run", "pendulum", *ENDLESS, *plain) as run:
        warned = re.compile(
            r"no learner has connected in 10 s; this rig listens at ipc://\S+ and tcp://127\.0\.0\.1:\d+"
        )
        run.until(lambda: warned.search(run.output), "the warning")
        run.process.kill(signal.SIGINT)
        assert run.ended() == ExitCode.INTERRUPTED


def test_a_rig_with_keys_readable_by_others_does_not_start(tmp_path: Path, keys: Path) -> None:
    (keys / "rig" / "secret.key").chmod(0o644)
    settings = [word for override in (*TCP, f"link.keys={keys}") for word in ("--set", override)]
    failed = start(tmp_path, "pendulum", *settings)
    assert failed.code == ExitCode.PREFLIGHT
    assert "open to other users (mode 0644); chmod 600 it" in failed.line


def test_a_rig_whose_address_is_in_use_does_not_start(tmp_path: Path) -> None:
    with LossyLink(1) as taken:
        settings = (f"link.listen={taken.endpoint}", "link.allow_plain_loopback=true")
        failed = start(tmp_path, "pendulum", *WITHOUT_LEARNER, *(w for s in settings for w in ("--set", s)))
    assert failed.code == ExitCode.HARDWARE
    assert "Address already in use" in failed.line


def test_a_learner_with_keys_readable_by_others_does_not_start(tmp_path: Path, keys: Path) -> None:
    (keys / "learner").chmod(0o755)
    with learner(tmp_path / "out", "tcp://127.0.0.1:9", "--keys", str(keys)) as popen:
        assert popen.wait(PATIENCE_S) == ExitCode.PREFLIGHT
    assert (tmp_path / "out").read_text().count("\n") == 1
