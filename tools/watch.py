"""View of a running rig in a terminal, locally or over ssh, without any effect on the run."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.running import RemoteControl, Running, SegmentError, SegmentMissing
from onrig.runtime.supervise.requests import Keyboard, open_keyboard
from onrig.tools.active_runs import choose_run, describe_outcome
from onrig.tools.terminal import complain, drawing_stream

if TYPE_CHECKING:
    from onrig.tools.watching.snapshot import Watcher

_REFRESH_HZ: Final = 8.0
_LINE_INTERVAL_S: Final = 2.0
_CONFIRM_TEXT: Final = "stop the run? y: fade out and end, any other key: cancel"
_STOPPING_TEXT: Final = "stopping; s again: disarm now"


def watch(run: Path | None, *, once: bool, plain: bool) -> int:
    """Watch until the run ends or q is pressed, and return the exit code."""
    selected = choose_run("watch", run, anywhere=True)
    if isinstance(selected, int):
        return selected
    from onrig.runtime.view.run_view import RunView
    from onrig.tools.watching.snapshot import Watcher

    try:
        with RunView.from_running(selected) as view:
            watcher = Watcher(view)
            if once:
                return _print_lines(watcher, lambda: False)
            alive = _liveness_test(selected.pid)
            keys = open_keyboard()
            if plain or keys is None or not sys.stdout.isatty() or not _has_rich():
                code = _print_lines(watcher, alive)
            else:
                with keys:
                    code = _run_screen(watcher, selected, keys, alive)
            has_ended = not alive()
    except SegmentMissing:
        has_ended, code = True, ExitCode.OK
    except SegmentError as error:
        return complain(
            "watch", f"{error}; use the version of Onrig with which the run was started", ExitCode.PREFLIGHT
        )
    except ConfigError as error:
        from onrig.tools.load import print_problems

        return print_problems(error)
    if has_ended:
        print(f"{selected.folder}: {describe_outcome(selected.folder)}")
    return code


def _liveness_test(pid: int) -> Callable[[], bool]:
    """Return a function that tests whether a process is alive, and is not misled by a reused pid."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return lambda: False
    return lambda: not select.select((fd,), (), (), 0)[0]


def _has_rich() -> bool:
    from importlib.util import find_spec

    return find_spec("rich") is not None


def _print_lines(watcher: Watcher, alive: Callable[[], bool]) -> int:
    from onrig.tools.watching.screen import one_line

    while True:
        print(one_line(watcher.snapshot()), flush=True)
        deadline_s = time.monotonic() + _LINE_INTERVAL_S
        while alive() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if not alive():
            return ExitCode.OK


def _run_screen(watcher: Watcher, run: Running, keys: Keyboard, alive: Callable[[], bool]) -> int:
    from rich.console import Console
    from rich.live import Live

    from onrig.tools.watching.rig_text import create_sketch
    from onrig.tools.watching.screen import screen

    console = Console(file=drawing_stream(sys.stdout))
    unicode = "utf" in (console.encoding or "").lower()
    stop_keys = StopKeys(run)
    snapshot = watcher.snapshot()
    sketch = create_sketch(snapshot.config)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while alive():
            width, height = console.size
            live.update(screen(snapshot, sketch, stop_keys.footer, width, height, unicode=unicode), refresh=True)
            if keys.is_listening:
                select.select((keys,), (), (), 1 / _REFRESH_HZ)
            else:
                time.sleep(1 / _REFRESH_HZ)
            for key in keys.read_keys():
                if stop_keys.handle_key(key):
                    return ExitCode.OK
            snapshot = watcher.snapshot()
    return ExitCode.OK


class StopKeys:
    """Key bindings: q quits, s asks whether to stop, y confirms."""

    def __init__(self, run: Running) -> None:
        self._run = run
        self._awaits_confirmation = False
        self._stop_level = 0

    @property
    def footer(self) -> str:
        """Last line of the screen."""
        from onrig.tools.watching.screen import KEYS

        return _CONFIRM_TEXT if self._awaits_confirmation else _STOPPING_TEXT if self._stop_level else KEYS

    def handle_key(self, key: str) -> bool:
        """Handle one key, and return whether to quit."""
        if self._awaits_confirmation:
            self._awaits_confirmation = False
            if key == "y":
                self._stop()
            return False
        if key == "q":
            return True
        if key == "s" and self._stop_level:
            self._stop()  # a second request needs no confirmation
        elif key == "s":
            self._awaits_confirmation = True
        return False

    def _stop(self) -> None:
        self._stop_level = min(self._stop_level + 1, 2)
        with contextlib.suppress(SegmentError), RemoteControl(self._run) as remote:
            remote.stop(self._stop_level)
