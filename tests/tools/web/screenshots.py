"""Screenshots of the live page for the docs: ``python -m tests.tools.web.screenshots OUT``.

Runs the shipped twins in lockstep, waits until they have learned something, opens the page in a headless Chromium,
and ends each run with the page's STOP button.
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
_N_COLOURS: Final = 256


class Screenshot(NamedTuple):
    """One screenshot."""

    name: str
    config: str
    width: int
    height: int
    scale: float
    is_dark: bool
    full_page: bool
    colour: str


SCREENSHOTS: Final = (
    Screenshot("pendulum-dark", "pendulum", 1400, 900, 1.0, True, True, "age"),
    Screenshot("pendulum-light", "pendulum", 1400, 900, 1.0, False, True, "td"),
    Screenshot("pendulum-phone", "pendulum", 390, 1180, 2.0, True, False, "age"),
    Screenshot("magman-dark", "magman", 1400, 900, 1.0, True, True, "exploration"),
    Screenshot("magman-light", "magman", 1400, 900, 1.0, False, True, "age"),
    Screenshot("magman-phone", "magman", 390, 1180, 2.0, False, False, "age"),
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
                _take_screenshots(path, url, args.out, config, args.episodes or episodes)
    return ExitCode.OK


@contextlib.contextmanager
def _running(config: str) -> Iterator[str]:
    """A run with its page; yields the page's address."""
    with tempfile.TemporaryDirectory(prefix="onrig-screenshots-") as folder:
        command = [sys.executable, "-m", "onrig.tools.cli", "run", config, "--run-dir", f"{folder}/{config}", "--web"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield find_address(process.stdout)
                process.communicate(timeout=60)
            finally:
                process.terminate()
                process.communicate(timeout=60)


def find_address(lines: Iterable[str]) -> str:
    """Find the page's address in the output of a run."""
    for line in lines:
        match = _URL.search(line)
        if match is not None:
            return match[1]
    raise RuntimeError("the run ended before it had a page")


def _take_screenshots(path: str, url: str, out: Path, config: str, episodes: int) -> None:
    with Browser(path, timeout_s=900.0) as browser:
        browser.show(url, width=1400, height=900, is_dark=True)
        episode_expression = "Number(document.getElementById('count')?.textContent.split('/')[0] ?? 0)"
        print(f"{config}: waiting for episode {episodes}", flush=True)
        browser.wait_until(
            f"{episode_expression} >= {episodes} && document.documentElement.dataset.received.includes('memory')"
        )
        for screenshot in SCREENSHOTS:
            if screenshot.config != config:
                continue
            browser.show(
                url,
                width=screenshot.width,
                height=screenshot.height,
                is_dark=screenshot.is_dark,
                is_mobile=screenshot.width < 600,
                scale=screenshot.scale,
            )
            browser.wait_until("document.documentElement?.dataset.received?.includes('memory')")
            browser.evaluate(f"document.querySelector('input[value={screenshot.colour}]').click()")
            browser.wait_until("document.getElementById('rig-note').textContent.startsWith('evaluation')")
            browser.listen(2.4)  # in the middle of an episode played back
            file = out / f"{screenshot.name}.png"
            browser.screenshot(file, full_page=screenshot.full_page)
            _shrink(file)
            print(f"{file}: {file.stat().st_size // 1000} kB", flush=True)
        browser.evaluate("document.getElementById('stop').click()")
        browser.wait_until("document.getElementById('stop').disabled")
        for problem in browser.problems:
            print(f"console: {problem}", file=sys.stderr)


def _shrink(file: Path) -> None:
    """Reduce the colours if Pillow is installed: half the bytes, without a visible difference."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(file) as image:
        quantized = image.convert("RGB").quantize(
            _N_COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE
        )
        quantized.save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
