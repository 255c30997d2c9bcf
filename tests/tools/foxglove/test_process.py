"""The Foxglove server of a run, tested with a client of the protocol; skipped without the extra ``live_run``."""

from __future__ import annotations

import base64
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("foxglove")

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.log.messages import STEPS, channels
from onrig.runtime.log.steps import StepMessages
from onrig.runtime.run_state.running import Running
from onrig.runtime.view import run_view
from onrig.tools import run as run_module
from onrig.tools.cli import main
from onrig.tools.foxglove.process import FoxgloveServer
from onrig.tools.web.guard import TOKEN, Address, listen_at
from tests.lab.rig.processes import PATIENCE_S, until
from tests.runtime.samples import PENDULUM, records
from tests.runtime.view.live import LiveRun
from tests.tools.foxglove.viewer import BINARY, TEXT, Viewer

ADVERTISED = [c for c in channels(StepMessages(PENDULUM.rig)) if c.topic != "/onrig/loop"]


@pytest.fixture
def live_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveRun]:
    with LiveRun(tmp_path / "run", tmp_path / "shm", PENDULUM) as run:
        running: list[Running] = [run.running]
        monkeypatch.setattr(
            run_view, "find_running", lambda folder: next((r for r in running if r.folder == folder), None)
        )
        yield run


@pytest.fixture
def server(live_run: LiveRun) -> Iterator[FoxgloveServer]:
    with FoxgloveServer(live_run.folder, "") as server:
        yield server


def ids(viewer: Viewer) -> dict[str, int]:
    """Wait for the advertisement of the log's channels; returns their numbers."""
    advertised = {c["topic"]: c for c in viewer.text("advertise")["channels"]}
    assert set(advertised) == {c.topic for c in ADVERTISED}
    for channel in ADVERTISED:
        advertised_channel = advertised[channel.topic]
        assert (advertised_channel["encoding"], advertised_channel["schemaName"]) == ("protobuf", channel.message)
        assert base64.b64decode(advertised_channel["schema"] + "==") == channel.descriptors
    return {topic: advertised_channel["id"] for topic, advertised_channel in advertised.items()}


def test_a_viewer_gets_the_channels_of_the_log_and_their_messages(server: FoxgloveServer, live_run: LiveRun) -> None:
    rows = records(3)
    with Viewer(server.url) as viewer:
        assert viewer.text("serverInfo")["capabilities"] == []
        viewer.ask(op="subscribe", subscriptions=[{"id": 7, "channelId": ids(viewer)[STEPS]}])
        until(lambda: server.has_viewers, "the subscription")
        server.forward(0.0)
        live_run.push(rows)
        server.forward(0.1)
        received = [viewer.message() for _ in rows]
    assert [(number, t_ns) for number, t_ns, _ in received] == [(7, t) for t in rows["t_mono_ns"].tolist()]
    assert StepMessages(PENDULUM.rig).decode(b"".join(data for *_, data in received))["tick"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "message", "reply"),
    [
        (TEXT, b'{"op":"advertise","channels":[{"id":1,"topic":"/u","encoding":"json","schemaName":""}]}', "status"),
        (BINARY, b"\x01" + bytes(4) + b'{"voltage":3}', "status"),
        (BINARY, b"\x02" + struct.pack("<III", 1, 1, 4) + b"json{}", "serviceCallFailure"),
        (TEXT, b'{"op":"setParameters","parameters":[{"name":"a","value":1}]}', "status"),
    ],
)
def test_a_viewer_can_neither_publish_nor_call_nor_set(
    server: FoxgloveServer, kind: int, message: bytes, reply: str
) -> None:
    with Viewer(server.url) as viewer:
        viewer.send(kind, message)
        assert re.search("does not support|Unknown channel", viewer.text(reply)["message"])


@pytest.mark.parametrize("origin", [None, "file://", "http://localhost:8080", "https://app.foxglove.dev"])
def test_local_programs_and_pages_may_watch(server: FoxgloveServer, origin: str | None) -> None:
    with Viewer(server.url, origin) as viewer:
        viewer.text("serverInfo")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "https://app.foxglove.dev.evil.example", "http://["]
)
def test_pages_of_other_sites_may_not_watch(server: FoxgloveServer, origin: str) -> None:
    with pytest.raises(PermissionError, match="403"):
        Viewer(server.url, origin)


def test_on_other_interfaces_the_address_includes_a_token(live_run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    with listen_at(Address("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    local_url = f"ws://127.0.0.1:{port}/"
    with FoxgloveServer(live_run.folder, f"0.0.0.0:{port}") as server:
        assert server.url.endswith(f":{port}/?token=secret")
        for query in ("", "?token=wrong"):
            with pytest.raises(PermissionError, match="401"):
                Viewer(local_url + query)
        with Viewer(local_url + "?token=secret", "https://lab.example") as viewer:
            viewer.text("serverInfo")


def test_a_viewer_beyond_the_limit_is_refused(server: FoxgloveServer) -> None:
    viewers = [Viewer(server.url) for _ in range(8)]
    with pytest.raises(PermissionError, match="503"):
        Viewer(server.url)
    for viewer in viewers:
        viewer.close()


def test_a_missing_library_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "find_spec", lambda name: None)
    assert main(["run", "pendulum", "--foxglove", "--dry-run"]) == ExitCode.PREFLIGHT
    assert capsys.readouterr().err == "onrig run: --foxglove needs foxglove-sdk: pip install 'onrig[live]'\n"


def test_an_invalid_address_is_reported_with_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "pendulum", "--foxglove", "1:2:3", "--dry-run"]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err.startswith("onrig run: --foxglove: ")


@pytest.mark.study
def test_a_run_is_visible_while_it_lives(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "onrig.tools.cli", "run", "pendulum", "--run-dir", str(tmp_path / "run")]
    command += ["--foxglove", "--set", "episodes=100000"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = next(line.split()[1] for line in process.stdout if line.startswith("Foxglove: "))
            with Viewer(url, timeout_s=PATIENCE_S) as viewer:
                viewer.ask(op="subscribe", subscriptions=[{"id": 7, "channelId": ids(viewer)[STEPS]}])
                assert len({viewer.message()[1] for _ in range(50)}) == 50
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
