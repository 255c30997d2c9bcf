from __future__ import annotations

import contextlib
import functools
import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_loading import save_resolved
from onrig.tools.cli import main
from onrig.tools.web.guard import Address, listen_at
from onrig.tools.web.live_view import ViewError, live_view
from tests.lab.rig.processes import until
from tests.runtime.samples import PENDULUM
from tests.sockets import free_port


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_resolved(PENDULUM, tmp_path / "config.yaml")
    return tmp_path


def fetch_page_pid(url: str) -> int:
    parts = urlsplit(url)
    assert parts.hostname is not None
    with contextlib.closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)) as connection:
        connection.request("GET", f"/?{parts.query}")
        return connection.getresponse().status


def answers(url: str) -> bool:
    try:
        return fetch_page_pid(url) == 200
    except OSError:
        return False


def count_restarts(folder: Path) -> int:
    return (folder / "stderr.log").read_text().count("ended with code -9; restarted")


def find_page_process(folder: Path) -> int:
    """Process id of the server of a run's page; 0: none."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"onrig.tools.web.process" in words and str(folder).encode() in words:
                return int(entry.name)
    return 0


def test_the_page_exists_while_the_context_lasts(folder: Path) -> None:
    with live_view(folder, "") as url:
        assert url.startswith("http://127.0.0.1:")
        assert fetch_page_pid(url) == 200
        assert find_page_process(folder)
    assert not find_page_process(folder)


def test_on_other_interfaces_the_address_includes_a_token(folder: Path) -> None:
    port = free_port()
    with live_view(folder, f"0.0.0.0:{port}") as url:
        token = urlsplit(url).query
        assert token.startswith("token=")
        assert fetch_page_pid(f"http://127.0.0.1:{port}/?{token}") == 200
        assert fetch_page_pid(f"http://127.0.0.1:{port}/") == 401


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("0.0.0.0", marks=pytest.mark.study)])
def test_a_page_whose_process_is_killed_returns_at_the_same_address(folder: Path, host: str) -> None:
    port = free_port()
    with live_view(folder, f"{host}:{port}") as url:
        local_url = urlsplit(url)._replace(netloc=f"127.0.0.1:{port}").geturl()
        for _ in range(2):
            n_restarts = count_restarts(folder)
            process = find_page_process(folder)
            assert process
            os.kill(process, signal.SIGKILL)
            until(
                functools.partial(lambda previous: count_restarts(folder) > previous, n_restarts), "its end to be seen"
            )
            until(lambda: answers(local_url), "the page")
    assert not find_page_process(folder)


def test_a_port_in_use_is_reported_in_one_line(folder: Path) -> None:
    with listen_at(Address("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(ViewError, match=f"127.0.0.1:{port}") as error, live_view(folder, str(port)):
            pass
    assert error.value.code == ExitCode.PREFLIGHT


def test_a_run_does_not_start_if_its_page_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen_at(Address("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        code = main(["run", "pendulum", "--run-dir", str(tmp_path / "run"), "--web", str(port)])
    assert code == ExitCode.PREFLIGHT
    assert f"onrig run: --web: 127.0.0.1:{port}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["pendulum", "0", "1:2:3"])
def test_an_invalid_address_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str) -> None:
    code = main(["run", "pendulum", "--run-dir", str(tmp_path / "run"), "--web", address])
    assert code == ExitCode.CONFIGURATION
    assert "onrig run: --web: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_a_run_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", str(tmp_path)]) == ExitCode.CONFIGURATION
    assert "is not a run folder" in capsys.readouterr().err


def test_the_page_of_a_finished_run_is_served_until_stopped(folder: Path) -> None:
    (folder / "summary.json").write_text('{"exit_reason":"completed"}')
    command = [sys.executable, "-m", "onrig.tools.cli", "web", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            url = process.stdout.readline().split()[2]
            assert fetch_page_pid(url) == 200
        finally:
            process.terminate()
        assert process.wait(30) == ExitCode.OK
