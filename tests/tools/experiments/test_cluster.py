"""Experiments on a Ray cluster of two nodes started by the test (`make study`), and valid addresses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from onrig.hw.native import executor_of
from onrig.tools.experiments import cluster
from onrig.tools.experiments.jobs import Unit, create_job
from onrig.tools.experiments.workers import ExecutorMismatch
from tests.tools.experiments import specs
from tests.tools.experiments.test_experiment import SPEC, experiment

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")  # importing it takes a second

_NODES = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
nodes.add_node(**node)
print(nodes.address, flush=True)
sys.stdin.read()
nodes.shutdown()
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster in a separate process: resources that Ray leaves open do not affect the tests."""
    process = subprocess.Popen(
        [sys.executable, "-c", _NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines = (line.strip() for line in process.stdout)
    yield next(line for line in lines if line.rpartition(":")[2].isdecimal())
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


@pytest.mark.study  # two nodes of Ray cost more than the rest of this folder
def test_a_cluster_gives_the_same_files_as_this_machine(tmp_path: Path, address: str) -> None:
    spec = specs.write_spec(tmp_path, SPEC)
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "onrig.tools.cli",
            "experiment",
            spec,
            "--out",
            tmp_path / "there",
            "--cluster",
            address,
        ],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1].startswith("6 of 6 trials are in")
    assert experiment(spec, "--out", tmp_path / "here", "--workers", 1) == 0
    assert specs.trial_files(tmp_path / "there") == specs.trial_files(tmp_path / "here")


def test_a_node_with_another_executor_ends_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit(specs.small_cells(tmp_path)[0], (0,))
    job = msgspec.structs.replace(create_job(unit), executor=executor_of("riscv64"))
    answer = cluster.run_remotely(msgspec.json.encode(job), "tests.tools.experiments.fake_engine", {})
    monkeypatch.setattr("ray.get", lambda reference: answer)
    with pytest.raises(ExecutorMismatch, match=r"the worker on .* computed by the C library \(riscv64\); here"):
        cluster._outcome(unit, reference=object())


def test_a_dead_address_is_reported_in_one_line_and_the_folder_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = specs.write_spec(tmp_path, SPEC)
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
    assert experiment(spec, "--out", tmp_path / "out", "--cluster", f"127.0.0.1:{port}") == 4
    assert capsys.readouterr().err == (
        f"onrig experiment: no Ray cluster at 127.0.0.1:{port} (Connection refused); start one with "
        f"`ray start --head`; continue with `onrig experiment {spec} --out {tmp_path}/out --cluster 127.0.0.1:{port} "
        "--resume`\n"
    )


def test_a_port_that_never_answers_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.5)
    spec = specs.write_spec(tmp_path, SPEC)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert experiment(spec, "--out", tmp_path / "out", "--cluster", address) == 4
    assert f"no Ray cluster at {address} (no answer within 0.5 s)" in capsys.readouterr().err


@pytest.mark.parametrize("host_port", ["auto", "10.0.0.1:6379", "ray://head:10001", "[::1]:6379"])
def test_valid_addresses(host_port: str) -> None:
    assert cluster.address_problem(host_port) is None


@pytest.mark.parametrize("host_port", ["", "local", "head", "head:", "head:0", "head:99999", "http://head:1", "a b:1"])
def test_invalid_addresses(host_port: str) -> None:
    assert (
        cluster.address_problem(host_port)
        == f"'{host_port}' is not an address: expected HOST:PORT, ray://HOST:PORT or auto"
    )
