"""The page in a browser, for a run that shows its episodes one after another; skipped without Chromium."""

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
from tests.tools.web.screenshots import find_address

CHROMIUM: Final = find_chromium()
PATIENCE_S: Final = 60.0
FAST_RUN: Final = (
    *UNHURRIED,
    "device.pace={scaled: 5}",
    "episodes=100000",
    "task.episode_s=1",
    "learner.updates_per_episode=5",
)
"""Too fast to watch, so the page plays clips, as in lockstep; a run in lockstep would compete with the browser for the
processor."""
INK_SCRIPT: Final = """
(() => { const e = document.getElementById('%s'), c = e.querySelector('canvas') ?? e;
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add((d[i] << 16) | (d[i + 1] << 8) | d[i + 2]);
  return seen.size; })()"""
CANVAS_IDS: Final = ("rig", "trace", "coverage", "curve", "exploration", "histogram", "policy-strip", "safety-strip")

FRAMES_SCRIPT: Final = """
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
"""In at least 90 frames, until it has moved: the angle as a number, as drawn (hub, bob, target and dial are the circles
in order of size), and as marked."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    folder = tmp_path_factory.mktemp("web") / "run"
    command = [sys.executable, "-m", "onrig.tools.cli", "run", "pendulum", "--run-dir", str(folder), "--web"]
    for setting in FAST_RUN:
        command += ["--set", setting]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, find_address(process.stdout), folder
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, timeout_s=PATIENCE_S) as page_browser:
        yield page_browser


@pytest.mark.parametrize(("width", "is_dark"), [(1280, True), (390, False)])
def test_all_drawings_are_filled_without_errors(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser, width: int, is_dark: bool
) -> None:
    browser.show(run[1], width=width, height=900, is_dark=is_dark, is_mobile=width < 600)
    browser.wait_until(
        "['clip', 'memory', 'figures', 'episodes'].every((k) => document.documentElement.dataset.received?.includes(k))"
    )
    browser.wait_until("document.getElementById('legend-surface-text').textContent.includes('policy')")
    for canvas in CANVAS_IDS:
        browser.wait_until(f"({INK_SCRIPT.strip() % canvas}) > 4")
    assert browser.evaluate("document.documentElement.scrollWidth") == width, "nothing extends beyond the window"
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(14, 17, 22)" if is_dark else "rgb(243, 242, 238)"
    )
    assert browser.evaluate("document.querySelectorAll('#timing-rows td').length") == 8
    progress = browser.evaluate("document.getElementById('progress').getBoundingClientRect().width")
    assert isinstance(progress, int | float)
    assert progress >= min(width, 130)
    assert browser.evaluate(
        "(() => { const d = document.getElementById('details'); return d.scrollWidth <= d.clientWidth; })()"
    )
    shapes = browser.evaluate(
        "['stop', 'stop-now'].map((id) => getComputedStyle(document.getElementById(id)).clipPath)"
    )
    assert isinstance(shapes, list)
    assert len(set(shapes)) == 2, "the buttons differ in shape"
    browser.wait_until("document.querySelector('#events li:not(.empty), #policy-list li:not(.empty)') !== null")
    texts = "[...document.querySelectorAll('.list li:not(.empty) > span:last-child')].map((e) => e.clientWidth)"
    assert all(isinstance(w, int) and w > 150 for w in msgspec.convert(browser.evaluate(texts), list[int]))
    assert browser.evaluate("document.getElementById('promise').textContent") == "measured"
    unknown_words = "['undefined', 'NaN', 'null'].filter((word) => document.body.innerText.includes(word))"
    assert browser.evaluate(unknown_words) == []
    assert browser.problems == []


def test_number_drawing_and_mark_show_the_same_record_in_every_frame(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    browser.show(run[1], width=1280, height=900, is_dark=True)
    browser.wait_until("document.documentElement.dataset.received?.includes('clip')")
    browser.wait_until("document.getElementById('rig-note').textContent.includes('episode')")
    assert browser.problems == []
    frames = msgspec.convert(browser.evaluate(FRAMES_SCRIPT.strip()), list[tuple[float, float, float]])
    assert browser.problems == []
    assert len({number for number, _, _ in frames}) > 10, "it moves"
    for number, drawn_number, marked_number in frames:
        assert abs(math.remainder(number - drawn_number, math.tau)) < 0.0051
        assert abs(math.remainder(number - marked_number, math.tau)) < 0.0051


def test_data_between_two_frames_wait_for_the_next(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    browser.show(run[1], width=1280, height=900, is_dark=True)
    browser.wait_until("document.documentElement.dataset.received?.includes('clip')")
    result = browser.evaluate("""
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
    assert result == [None, True, True, True, 0, 0, 0, "training episode 7, played at real speed"]


CHARTS_SCRIPT: Final = """
(async () => {
  const { bands, withBreaks } = await import('/timeplot.js');
  const t = [0, 1, 2, 3, 4], none = t.map(() => false), rects = [];
  const ctx = { fillRect: (x, y, w) => rects.push([x, w]) };
  bands({ valToPos: (v) => v }, ctx, 1, [[0, 0.1], [0.2, 0.3], [10, 20]], 'red');
  return { reset: withBreaks(t, [[1, 2, 8, 9, 10]], [false, false, true, false, false]),
    turn: withBreaks(t.slice(0, 2), [[3, -3]], none, 2 * Math.PI),
    target: withBreaks(t.slice(0, 2), [[3, -3], [1, 2]], none, 2 * Math.PI), rects };
})()"""


def test_no_line_crosses_a_reset_or_a_turn_and_no_bands_overlap(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    browser.show(run[1], width=1280, height=900, is_dark=True)
    browser.wait_until("document.documentElement.dataset.received?.includes('clip')")
    charts = msgspec.convert(browser.evaluate(CHARTS_SCRIPT), dict[str, list[list[float | None]]])
    assert charts["reset"] == [[0, 1, 2, 2, 3, 4], [1, 2, None, 8, 9, 10]]
    times, angles = charts["turn"]
    assert angles == [3, pytest.approx(math.pi), None, pytest.approx(-math.pi), -3]
    assert times == [0, pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), 1]
    assert charts["target"] == [times, angles, [1, *[pytest.approx(1.5)] * 3, 2]], (
        "a signal that does not wrap has no gap"
    )
    spans = [(x, x + w) for x, w in charts["rects"] if x is not None and w is not None]
    assert all(left >= span_end for (_, span_end), (left, _) in itertools.pairwise(spans))


def test_a_time_plot_has_a_cursor_and_a_zoom_and_the_motion_can_be_paused(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    browser.show(run[1], width=1280, height=900, is_dark=True)
    browser.wait_until("document.getElementById('rig-note')?.textContent.includes('episode')")
    box = msgspec.convert(
        browser.evaluate("(({ x, y, width, height }) => [x, y, width, height])"
                      "(document.querySelector('#trace .u-over').getBoundingClientRect())"),
        tuple[float, float, float, float],
    )  # fmt: skip
    y = box[1] + box[3] / 2

    def send_mouse_event(kind: str, fraction: float, n_clicks: int = 1) -> None:
        x = box[0] + fraction * box[2]
        button_state = {"button": "none" if kind == "mouseMoved" and not n_clicks else "left", "clickCount": n_clicks}
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=int(n_clicks > 0), **button_state)

    seconds = "document.querySelector('#trace .at').textContent"
    send_mouse_event("mouseMoved", 0.1, 0)
    browser.wait_until(
        f"{seconds}.endsWith(' s') && document.querySelector('#trace output').textContent.endsWith(' rad')"
    )
    send_mouse_event("mousePressed", 0.1)
    browser.wait_until("document.getElementById('hold').getAttribute('aria-pressed') === 'true'")
    for fraction in (0.2, 0.3):
        send_mouse_event("mouseMoved", fraction)
    send_mouse_event("mouseReleased", 0.3)
    zoom_expression = "[...document.querySelectorAll('#trace .u-over')].length"
    assert browser.evaluate(zoom_expression) == 3
    seconds_before = browser.evaluate(seconds)
    send_mouse_event("mouseMoved", 0.9, 0)
    browser.wait_until(f"{seconds} !== {seconds_before!r} && parseFloat({seconds}) < 0.35")
    browser.listen(0.3)  # a frame that was under way
    readout = browser.evaluate("document.getElementById('readouts').textContent")
    browser.listen(0.3)
    assert browser.evaluate("document.getElementById('readouts').textContent") == readout, "it stands still"
    for n_clicks in (1, 2):
        send_mouse_event("mousePressed", 0.9, n_clicks)
        send_mouse_event("mouseReleased", 0.9, n_clicks)
    browser.wait_until("document.getElementById('hold').getAttribute('aria-pressed') === 'false'")
    send_mouse_event("mouseMoved", 0.85, 0)
    browser.wait_until(f"parseFloat({seconds}) > 0.7")
    assert browser.problems == []


def test_the_stop_button_ends_the_run_and_the_page_says_so(
    run: tuple[subprocess.Popen[str], str, Path], browser: Browser
) -> None:
    process, url, folder = run
    browser.show(url, width=1280, height=900, is_dark=True)
    browser.wait_until("document.getElementById('state')?.textContent === 'running'")
    browser.evaluate("document.getElementById('stop').click()")
    browser.wait_until("document.getElementById('stop').disabled")
    browser.wait_until("document.getElementById('notice').textContent.includes('from the live view')")
    stdout = process.stdout
    assert stdout is not None
    while select.select((stdout,), (), (), PATIENCE_S)[0] and stdout.readline():
        pass
    assert process.wait(PATIENCE_S) == 130
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["exit_reason"] == "stopped from the live view"
    words = facts_from_summary(load_resolved(folder / "config.yaml"), summary).words()
    browser.wait_until(f"document.getElementById('policies-note').textContent === '{words['policies']}'")
    browser.wait_until(f"document.getElementById('missed').textContent.startsWith('{words['ticks']}; ')")
    assert folder not in [r.folder for r in running_rigs()]
    browser.wait_until("document.getElementById('rig-note').textContent.includes('episode')")
