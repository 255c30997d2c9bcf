"""Screenshots of the live page for the docs: ``python -m tests.tools.web.screenshots OUT``.

Runs the shipped twins in lockstep, waits until they have learned something, opens the page in a headless Chromium,
and ends each run by the page's own STOP button.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.exit_codes import ExitCode
from tests.tools.web.chromium import Browser, find_chromium

_EPISODES: Final = {"pendulum": 300, "magman": 150}
_URL: Final = re.compile(r"live view: (\S+)")
_COLOURS: Final = 256


class Shot(NamedTuple):
    """One screenshot."""

    name: str
    config: str
    width: int
    height: int
    scale: float
    dark: bool
    whole: bool
    colour: str


SHOTS: Final = (
    Shot("pendulum-dark", "pendulum", 1400, 900, 1.0, True, True, "age"),
    Shot("pendulum-light", "pendulum", 1400, 900, 1.0, False, True, "td"),
    Shot("pendulum-phone", "pendulum", 390, 1180, 2.0, True, False, "age"),
    Shot("magman-dark", "magman", 1400, 900, 1.0, True, True, "exploration"),
    Shot("magman-light", "magman", 1400, 900, 1.0, False, True, "age"),
    Shot("magman-phone", "magman", 390, 1180, 2.0, False, False, "age"),
)


def main(arguments: list[str]) -> int:
    """Take them all; returns the exit code."""
    p = argparse.ArgumentParser(prog="python -m tests.tools.web.screenshots", description=__doc__)
    p.add_argument("out", type=Path, metavar="OUT", help="folder for the screenshots")
    p.add_argument("--episodes", type=int, help="training episodes before the screenshots (default: 300 and 150)")
    p.add_argument("--only", choices=sorted(_EPISODES), help="one of the twins alone")
    args = p.parse_args(arguments)
    path = find_chromium()
    if path is None:
        sys.stderr.write("screenshots: there is no chromium on this machine; install it\n")
        return ExitCode.PREFLIGHT
    args.out.mkdir(parents=True, exist_ok=True)
    for config, episodes in _EPISODES.items():
        if args.only in (None, config):
            with _running(config) as url:
                _take(path, url, args.out, config, args.episodes or episodes)
    return ExitCode.OK


@contextlib.contextmanager
def _running(config: str) -> Iterator[str]:
    """A run with its page; gives the page's address."""
    with tempfile.TemporaryDirectory(prefix="onrig-screenshots-") as folder:
        command = [sys.executable, "-m", "onrig.tools.cli", "run", config, "--run-dir", f"{folder}/{config}", "--web"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield address_in(process.stdout)
                process.communicate(timeout=60)
            finally:
                process.terminate()
                process.communicate(timeout=60)


def address_in(lines: Iterable[str]) -> str:
    """Find the page's address in what a run prints."""
    for line in lines:
        found = _URL.search(line)
        if found is not None:
            return found[1]
    raise RuntimeError("the run ended before it had a page")


def _take(path: str, url: str, out: Path, config: str, episodes: int) -> None:
    with Browser(path, timeout_s=900.0) as browser:
        browser.show(url, width=1400, height=900, dark=True)
        reached = "Number(document.getElementById('count')?.textContent.split('/')[0] ?? 0)"
        print(f"{config}: waiting for episode {episodes}", flush=True)
        browser.until(f"{reached} >= {episodes} && document.documentElement.dataset.received.includes('memory')")
        for shot in SHOTS:
            if shot.config != config:
                continue
            browser.show(
                url, width=shot.width, height=shot.height, dark=shot.dark, mobile=shot.width < 600, scale=shot.scale
            )
            browser.until("document.documentElement?.dataset.received?.includes('memory')")
            browser.value(f"document.querySelector('input[value={shot.colour}]').click()")
            browser.until("document.getElementById('rig-note').textContent.startsWith('evaluation')")
            browser.listen(2.4)  # in the middle of an episode played back
            file = out / f"{shot.name}.png"
            browser.screenshot(file, whole=shot.whole)
            _shrink(file)
            print(f"{file}: {file.stat().st_size // 1000} kB", flush=True)
        browser.value("document.getElementById('stop').click()")
        browser.until("document.getElementById('stop').disabled")
        for problem in browser.problems:
            print(f"console: {problem}", file=sys.stderr)


def _shrink(file: Path) -> None:
    """Fewer colours, where Pillow is there: half the bytes, and nobody sees it."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(file) as image:
        few = image.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
        few.save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
