"""The pieces that docs/extending.md adds: as installed packages, and as files next to a run."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from onrig.hw.transport import DescriptorTransport, LineClosed, Transport, open_port
from tests.docs.commands import ROOT

PAGE: Final = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
MODULES: Final = {"A reward term": "lean", "A device over TCP": "tcp_line", "An input transform": "bins"}
"""Module of each example, by the heading of its section."""
GROUPS: Final = {"lean": "rewards", "tcp_line": "transports", "bins": "input_transforms"}
CLASSES: Final = {"lean": "Lean", "tcp_line": "MyTcp", "bins": "Bins"}
KINDS: Final = {"lean": "lean", "tcp_line": "my_tcp", "bins": "bins"}


def block(section: str, language: str) -> str:
    """The only block of a language in the section of an example."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return str(found)


def write_files(folder: Path) -> None:
    """Write the modules of all examples."""
    for section, module in MODULES.items():
        (folder / f"{module}.py").write_text(block(section, "python"), encoding="utf-8")


def install(folder: Path) -> Path:
    """Install each example as its own package; returns the folder for PYTHONPATH."""
    sources = []
    for section, module in MODULES.items():
        source = folder / "sources" / module
        source.mkdir(parents=True)
        (source / f"{module}.py").write_text(block(section, "python"), encoding="utf-8")
        (source / "pyproject.toml").write_text(block(section, "toml"), encoding="utf-8")
        sources.append(str(source))
    site = folder / "site"
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(site), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def import_example(section: str, folder: Path) -> ModuleType:
    """Import an example in this process."""
    path = folder / f"{MODULES[section]}.py"
    path.write_text(block(section, "python"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(MODULES[section], path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def on_tcp(path: str) -> Iterator[int]:
    """Serve the device behind a pty or a socket on a TCP port, to one host at a time; yields the port number."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended, ending = os.pipe()
        thread = threading.Thread(target=_serve, args=(server, path, ended))
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            os.close(ending)
            thread.join()
            os.close(ended)


def _serve(server: socket.socket, path: str, ended: int) -> None:
    while server.fileno() in select.select((server.fileno(), ended), (), ())[0]:
        host, _ = server.accept()
        host.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host.setblocking(False)
        ends = DescriptorTransport(host.detach(), "host"), open_port(path)
        with contextlib.suppress(LineClosed):
            while ended not in (ready := select.select((*(end.fileno() for end in ends), ended), (), ())[0]):
                for source, sink in (ends, ends[::-1]):
                    if source.fileno() in ready:
                        _pass_on(source.read(0), sink)
        for end in ends:
            end.close()


def _pass_on(data: bytes, sink: Transport) -> None:
    while data:
        data = data[sink.write(data) :]
