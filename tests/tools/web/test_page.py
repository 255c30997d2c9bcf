"""The page in a browser, of a run that shows its episodes one after another; left out where there is no Chromium."""

from __future__ import annotations

import itertools
import json
import math
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.running import running_rigs
from onrig.tools.run_facts import facts_from_summary
from tests.lab.rig.run import UNHURRIED
from tests.tools.web.chromium import Browser, find_chromium
from tests.tools.web.screenshots import address_in

CHROMIUM: Final = find_chromium()
PATIENCE_S: Final = 60.0
FASTER_THAN_ITS_PAGE: Final = (
    *UNHURRIED,
    "device.pace={scaled: 5}",
    "episodes=100000",
    "task.episode_s=1",
    "learner.updates_per_episode=5",
)
"""Too fast to be watched, so the page plays clips, as it does in lockstep; a run in lockstep would keep the browser's
processor busy."""
INK: Final = """
(() => { const e = document.getElementById('%s'), c = e.querySelector('canvas') ?? e;
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add((d[i] << 16) | (d[i + 1] << 8) | d[i + 2]);
  return seen.size; })()"""
CANVASES: Final = ("rig", "trace", "coverage", "curve", "exploration", "histogram", "policy-strip", "safety-strip")

FRAMES: Final = """
(() => new Promise((done) => {
  const drawn = {}, arc = CanvasRenderingContext2D.prototype.arc, seen = [];
  CanvasRenderingContext2D.prototype.arc = function (x, y, radius, ...rest) {
    (drawn[this.canvas.id] ??= []).push([radius, x, y]);
    return arc.call(this, x, y, radius, ...rest);
  };
  const first = document.querySelector('#readouts dd');
  const look = () => {
    const rig = drawn.rig?.slice(-4).sort((a, b) => a[0] - b[0]), mark = drawn.coverage?.at(-1);
    if (rig?.length === 4 && mark?.[0] === 6) {
      const number = Number(first.firstChild.textContent.replace('\u2212', '-')), [[, x, y], [, bobX, bobY]] = rig;
      const width = document.getElementById('coverage').clientWidth;
      seen.push([number, Math.atan2(bobX - x, bobY - y), ((mark[1] - 54) / (width - 66)) * 2 * Math.PI - Math.PI]);
    }
    for (const canvas of Object.keys(drawn)) delete drawn[canvas];
    if (seen.length < 90 || new Set(seen.map((frame) => frame[0])).size <= 10) requestAnimationFrame(look);
    else done(seen);
  };
  requestAnimationFrame(look);
}))()"""
"""In 90 frames and more, until it has moved: the angle as a number, as drawn (hub, bob, target and dial are the circles
by size), as marked."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    folder = tmp_path_factory.mktemp("web") / "run"
    command = [sys.executable, "-m", "onrig.tools.cli", "run", "pendulum", "--run-dir", str(folder), "--web"]
    for setting in FASTER_THAN_ITS_PAGE:
        command += ["--set", setting]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, address_in(process.stdout), folder
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, timeout_s=PATIENCE_S) as opened:
        yield opened


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_all_drawings_are_filled_without_errors(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser, width: int, dark: bool
) -> None:
    browser.show(run[1], width=width, height=900, dark=dark, mobile=width < 600)
    browser.until(
        "['clip', 'memory', 'figures', 'episodes'].every((k) => document.documentElement.dataset.received?.includes(k))"
    )
    browser.until("document.getElementById('legend-surface-text').textContent.includes('policy')")
    for canvas in CANVASES:
        browser.until(f"({INK.strip() % canvas}) > 4")
    assert browser.value("document.documentElement.scrollWidth") == width, "nothing sticks out at the side"
    assert browser.value("getComputedStyle(document.body).backgroundColor") == (
        "rgb(14, 17, 22)" if dark else "rgb(243, 242, 238)"
    )
    assert browser.value("document.querySelectorAll('#timing-rows td').length") == 8
    progress = browser.value("document.getElementById('progress').getBoundingClientRect().width")
    assert isinstance(progress, int | float)
    assert progress >= min(width, 130)
    assert browser.value(
        "(() => { const d = document.getElementById('details'); return d.scrollWidth <= d.clientWidth; })()"
    )
    shapes = browser.value("['stop', 'stop-now'].map((id) => getComputedStyle(document.getElementById(id)).clipPath)")
    assert isinstance(shapes, list)
    assert len(set(shapes)) == 2, "the buttons differ in shape"
    browser.until("document.querySelector('#events li:not(.empty), #policy-list li:not(.empty)') !== null")
    texts = "[...document.querySelectorAll('.list li:not(.empty) > span:last-child')].map((e) => e.clientWidth)"
    assert all(isinstance(w, int) and w > 150 for w in msgspec.convert(browser.value(texts), list[int]))
    assert browser.value("document.getElementById('promise').textContent") == "measured"
    unknown = "['undefined', 'NaN', 'null'].filter((word) => document.body.innerText.includes(word))"
    assert browser.value(unknown) == []
    assert browser.problems == []


def test_number_drawing_and_mark_show_the_same_record_in_every_frame(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    browser.show(run[1], width=1280, height=900, dark=True)
    browser.until("document.documentElement.dataset.received?.includes('clip')")
    browser.until("document.getElementById('rig-note').textContent.includes('episode')")
    assert browser.problems == []
    frames = msgspec.convert(browser.value(FRAMES.strip()), list[tuple[float, float, float]])
    assert browser.problems == []
    assert len({number for number, _, _ in frames}) > 10, "it moves"
    for number, drawn, marked in frames:
        assert abs(math.remainder(number - drawn, math.tau)) < 0.0051
        assert abs(math.remainder(number - marked, math.tau)) < 0.0051


def test_data_between_two_frames_wait_for_the_next(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    browser.show(run[1], width=1280, height=900, dark=True)
    browser.until("document.documentElement.dataset.received?.includes('clip')")
    told = browser.value("""
(async () => {
  const { Stage } = await import('/stage.js');
  const part = (from, n) => { const t = Array.from({ length: n }, (_, i) => from + i / 40), one = () => t.map(() => 1);
    return { t, rule: one(), begins: one(), reward: [...t], amplitude: one(), margin: one(), observation: [[...t]],
      policy: [one()], applied: [one()] }; };
  const stage = new Stage(), told = [];
  stage.extend(part(0, 400)); told.push(stage.now()); stage.advance(0);
  const before = stage.now(); stage.extend(part(10, 200)); told.push(stage.now() === before);
  stage.advance(0.03); told.push(stage.samples.t[stage.now().index] === stage.now().t);
  for (let i = 0; i < 5000; i++) stage.extend(part(15 + i / 40, 1));
  told.push(stage.queue.length < 100 && stage.samples.t.length < 1000);
  stage.play({ ...part(0, 100), kind: 'training', episode: 7 }); stage.advance(0.5);
  told.push(stage.now().t, stage.now().observation[0], stage.now().reward, stage.now().label);
  return told;
})()""")
    assert told == [None, True, True, True, 0, 0, 0, "training episode 7, played at real speed"]


CHARTS: Final = """
(async () => {
  const { bands, withBreaks } = await import('/timeplot.js');
  const t = [0, 1, 2, 3, 4], none = t.map(() => false), rects = [];
  const ctx = { fillRect: (x, y, w) => rects.push([x, w]) };
  bands({ valToPos: (v) => v }, ctx, 1, [[0, 0.1], [0.2, 0.3], [10, 20]], 'red');
  return { reset: withBreaks(t, [[1, 2, 8, 9, 10]], [false, false, true, false, false]),
    turn: withBreaks(t.slice(0, 2), [[3, -3]], none, 2 * Math.PI),
    target: withBreaks(t.slice(0, 2), [[3, -3], [1, 2]], none, 2 * Math.PI), rects };
})()"""


def test_no_line_runs_through_a_reset_or_a_turn_and_no_band_lies_on_another(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    browser.show(run[1], width=1280, height=900, dark=True)
    browser.until("document.documentElement.dataset.received?.includes('clip')")
    told = msgspec.convert(browser.value(CHARTS), dict[str, list[list[float | None]]])
    assert told["reset"] == [[0, 1, 2, 2, 3, 4], [1, 2, None, 8, 9, 10]]
    times, angles = told["turn"]
    assert angles == [3, pytest.approx(math.pi), None, pytest.approx(-math.pi), -3]
    assert times == [0, pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), 1]
    assert told["target"] == [times, angles, [1, *[pytest.approx(1.5)] * 3, 2]], "what does not turn goes straight on"
    ends = [(x, x + w) for x, w in told["rects"] if x is not None and w is not None]
    assert all(left >= right for (_, right), (left, _) in itertools.pairwise(ends))


def test_a_time_plot_has_a_cursor_and_a_zoom_and_the_motion_a_pause(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    browser.show(run[1], width=1280, height=900, dark=True)
    browser.until("document.getElementById('rig-note')?.textContent.includes('episode')")
    box = msgspec.convert(
        browser.value("(({ x, y, width, height }) => [x, y, width, height])"
                      "(document.querySelector('#trace .u-over').getBoundingClientRect())"),
        tuple[float, float, float, float],
    )  # fmt: skip
    y = box[1] + box[3] / 2

    def mouse(kind: str, share: float, clicks: int = 1) -> None:
        x = box[0] + share * box[2]
        held = {"button": "none" if kind == "mouseMoved" and not clicks else "left", "clickCount": clicks}
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=int(clicks > 0), **held)

    seconds = "document.querySelector('#trace .at').textContent"
    mouse("mouseMoved", 0.1, 0)
    browser.until(f"{seconds}.endsWith(' s') && document.querySelector('#trace output').textContent.endsWith(' rad')")
    mouse("mousePressed", 0.1)
    browser.until("document.getElementById('hold').getAttribute('aria-pressed') === 'true'")
    for share in (0.2, 0.3):
        mouse("mouseMoved", share)
    mouse("mouseReleased", 0.3)
    zoomed = "[...document.querySelectorAll('#trace .u-over')].length"
    assert browser.value(zoomed) == 3
    before = browser.value(seconds)
    mouse("mouseMoved", 0.9, 0)
    browser.until(f"{seconds} !== {before!r} && parseFloat({seconds}) < 0.35")
    browser.listen(0.3)  # a frame that was under way
    readout = browser.value("document.getElementById('readouts').textContent")
    browser.listen(0.3)
    assert browser.value("document.getElementById('readouts').textContent") == readout, "it stands still"
    for clicks in (1, 2):
        mouse("mousePressed", 0.9, clicks)
        mouse("mouseReleased", 0.9, clicks)
    browser.until("document.getElementById('hold').getAttribute('aria-pressed') === 'false'")
    mouse("mouseMoved", 0.85, 0)
    browser.until(f"parseFloat({seconds}) > 0.7")
    assert browser.problems == []


def test_the_stop_button_ends_the_run_and_the_page_says_so(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    process, url, folder = run
    browser.show(url, width=1280, height=900, dark=True)
    browser.until("document.getElementById('state')?.textContent === 'running'")
    browser.value("document.getElementById('stop').click()")
    browser.until("document.getElementById('stop').disabled")
    browser.until("document.getElementById('notice').textContent.includes('from the live view')")
    descriptor = process.stdout
    assert descriptor is not None
    while select.select((descriptor,), (), (), PATIENCE_S)[0] and descriptor.readline():
        pass
    assert process.wait(PATIENCE_S) == 130
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["exit_reason"] == "stopped from the live view"
    words = facts_from_summary(load_resolved(folder / "config.yaml"), summary).words()
    browser.until(f"document.getElementById('policies-note').textContent === '{words['policies']}'")
    browser.until(f"document.getElementById('missed').textContent.startsWith('{words['ticks']}; ')")
    assert folder not in [r.folder for r in running_rigs()]
    browser.until("document.getElementById('rig-note').textContent.includes('episode')")
