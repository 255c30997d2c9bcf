"""The page of a run: its content, its self-containment, and that no run folder can break it."""

from __future__ import annotations

import base64
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from onrig.runtime.view.run_view import RunFiles, read_run
from onrig.tools.cli import main
from onrig.tools.reports.run import charts, report, tables
from onrig.tools.reports.run.expectations import pretraining_sheet
from onrig.tools.reports.run.report import report_run
from onrig.tools.reports.style import NO_PLOTS, new_figure
from onrig.tools.run_facts import facts_from_files
from tests.tools.reports.run.folders import (
    EVENTS,
    write_events,
    write_memory,
    write_policy,
    write_post_mortem,
    write_run,
)

SVG = "data:image/svg+xml;base64,"


class Page(HTMLParser):
    """Tags in order with their attributes, the text, and the plots by their alternative texts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.plots: dict[str, str] = {}
        self.references: list[str] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        attributes_by_name = {k: v or "" for k, v in attributes}
        self.references += [v for k, v in attributes_by_name.items() if k in ("src", "href")]
        if tag == "img":
            self.plots[attributes_by_name["alt"]] = attributes_by_name["src"]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def complete_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a run that left all of its files."""
    folder = tmp_path_factory.mktemp("run") / "a run"
    config = write_run(folder)
    write_policy(folder, config)
    write_memory(folder, config)
    write_post_mortem(folder, config)
    return Page(report_run(folder, config))


def svg(page: Page, alt_text: str) -> str:
    source = page.plots[alt_text]
    assert source.startswith(SVG)
    return base64.b64decode(source[len(SVG) :]).decode()


def test_it_has_all_plots(complete_page: Page) -> None:
    assert list(complete_page.plots) == [
        "learning curve, exploration, interventions, misses",
        "policies over time by verdict",
        "histograms of tick stages and lateness",
        "experiences in the state space",
        "last moments before the fault",
    ]
    assert all(svg(complete_page, alt_text).rstrip().endswith("</svg>") for alt_text in list(complete_page.plots)[:4])
    assert complete_page.plots["last moments before the fault"].startswith("data:image/png;base64,")


def test_the_page_is_self_contained(complete_page: Page) -> None:
    assert all(r.startswith(("data:", "#")) for r in complete_page.references)
    assert not {"script", "link", "iframe", "object"} & set(complete_page.tags)


def test_its_figures_are_the_runs(complete_page: Page) -> None:
    for expected in ("5 of 1206", "300 of 500", "6 of 6", "completed", "seed 0", "FIFO[Uniform]", "250 µs", "600"):
        assert expected in complete_page.text, expected
    assert "The memory stores 300 of at most 500 experiences" in complete_page.text


def test_missing_data_are_reported_with_the_reason(complete_page: Page) -> None:
    assert "shapes: output is <b>wide</b>" in complete_page.text, "as text"
    assert "worse by 0.2" in complete_page.text


def test_faults_are_shown_with_cause_and_hint(complete_page: Page) -> None:
    assert "001-device_lease: episode 4, tick 39, policy 1" in complete_page.text
    assert "no command reached the device <i>for long</i> (it was so)" in complete_page.text
    assert "i" not in complete_page.tags
    assert "look at the line" in complete_page.text


def test_it_states_how_to_repeat_the_run(complete_page: Page) -> None:
    assert "onrig run 'pen dulum'" in complete_page.text
    assert re.search(r"onrig run '\S*.*/a run/config.yaml' --run-dir '.*/a run-again'", complete_page.text)


def test_interventions_and_misses_are_counted_by_cause(complete_page: Page) -> None:
    text = re.sub(r"\s+", " ", complete_page.text)
    for row in ("envelope11", "host31", "link21"):
        assert row in text.replace(" ", ""), row


def test_the_same_run_gives_the_same_plots(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    pages = [Page(report_run(tmp_path, config, tmp_path / f"{k}.html")) for k in range(2)]
    assert pages[0].plots == pages[1].plots


@pytest.mark.parametrize(
    "damaged_name", ["summary.json", "meta.json", "episodes.csv", "events.jsonl", "timing.json", "buffer", "policies"]
)
@pytest.mark.parametrize("content", [None, b"\xff\x00{[<", b""])
def test_whatever_is_missing_or_damaged_a_page_is_written(
    tmp_path: Path, damaged_name: str, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # fast; the plots have their own tests
    config = write_run(tmp_path)
    if (tmp_path / damaged_name).exists():
        (tmp_path / damaged_name).unlink()
    if content is not None:
        (tmp_path / damaged_name).write_bytes(content)
    assert "pendulum swingup" in Page(report_run(tmp_path, config)).text


def test_a_run_without_any_data_has_a_page_without_figures(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    for path in tmp_path.iterdir():
        if path.name != "config.yaml":
            path.unlink()
    page = Page(report_run(tmp_path, config))
    assert page.plots == {}
    assert "unfinished" in page.text
    assert "The memory is not drawn: it has no checkpoint." in page.text


def test_without_matplotlib_the_tables_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_run(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = Page(report_run(tmp_path, config))
    assert NO_PLOTS in page.text
    assert page.plots == {}
    assert "5 of 1206" in page.text


def test_a_checkpoint_of_another_memory_is_reported_and_not_shown(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    write_memory(tmp_path, write_run(tmp_path, "seed=5"))
    page = Page(report_run(tmp_path, config))
    assert "experiences in the state space" not in page.plots
    assert "of a memory with 5 as its seed" in page.text


def test_many_events_are_truncated_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    config = write_run(tmp_path)
    many_events: list[dict[str, object]] = [{"kind": "warning", "message": f"number {k}"} for k in range(400)]
    repeated_events: list[dict[str, object]] = [{"kind": "event", "message": "same"}] * 9
    write_events(tmp_path, (*EVENTS[:1], *many_events, *repeated_events))
    text = Page(report_run(tmp_path, config)).text
    assert "number 0" in text
    assert "number 399" in text
    assert "number 200" not in text
    assert "281 lines between the first 40 and the last are omitted." in text


def test_the_verb_writes_the_page_to_the_given_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "p.html")]) == 0
    assert f"see {tmp_path / 'p.html'}" in capsys.readouterr().out
    assert not (tmp_path / "run" / "report.html").exists()
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "no" / "p.html")]) == 2
    assert "--out: no such folder" in capsys.readouterr().err


def test_a_chart_that_cannot_be_drawn_costs_one_line_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(m: RunFiles) -> None:
        raise RuntimeError("no font")

    config = write_run(tmp_path)
    monkeypatch.setattr(report, "timing_chart", raise_error)
    page = Page(report_run(tmp_path, config))
    assert page.plots
    assert "A chart was not drawn: no font" in page.text


def test_a_plot_replaces_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    (tmp_path / "learning_curve.png").mkdir()
    assert main(["report", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == "onrig report: learning_curve.png was not drawn: Is a directory\n"
    assert "see " in captured.out


def test_a_run_is_reported_without_the_file_of_its_first_policy(tmp_path: Path) -> None:
    write_run(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(config.read_text().replace("policy: null", "policy: sb3.onnx"))
    assert main(["report", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("name", "damaged_content"),
    [
        ("summary.json", "a folder"),
        ("meta.json", "empty lines"),
        ("timing.json", "garbage"),
        ("episodes.csv", "garbage"),
        ("events.jsonl", "a folder"),
        ("events.jsonl", "empty lines"),
    ],
)
def test_a_damaged_file_is_named_and_not_mistaken_for_a_missing_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damaged_content: str
) -> None:
    write_run(tmp_path)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    path.mkdir() if damaged_content == "a folder" else path.write_bytes(
        b"\n\n\n" if damaged_content == "empty lines" else b"\xff\n" * 4
    )
    assert main(["report", str(tmp_path)]) == 6
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"onrig report: {tmp_path}: {name} ")
    assert f"{name} " in Page(tmp_path / "report.html").text


def test_code_in_the_text_of_a_page_is_shown_as_code(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    write_events(tmp_path, (*EVENTS[:1], {"kind": "warning", "message": "see `onrig doctor` <b>"}))
    text = report_run(tmp_path, config).read_text()
    assert "see <code>onrig doctor</code> &lt;b&gt;" in text


def test_a_mean_is_never_beyond_the_axis(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    lines = (tmp_path / "episodes.csv").read_text().splitlines()
    low = [line.split(",") for line in lines[1:]]
    column = lines[0].split(",").index("normalized")
    rows = [",".join([*row[:column], "-7.5", *row[column + 1 :]]) for row in low]
    (tmp_path / "episodes.csv").write_text("\n".join((lines[0], *rows)) + "\n")
    _, [[axes]] = new_figure(1, 1, 3.0)
    charts._draw_performance(axes, read_run(tmp_path, config))
    assert axes.get_ylim()[0] < -7.5
    assert min(float(np.min(line.get_ydata())) for line in axes.get_lines()) >= axes.get_ylim()[0]


def test_empty_panels_are_left_out_and_reported(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    write_events(tmp_path, EVENTS[:1])
    chart = charts.episodes_chart(read_run(tmp_path, config))
    assert chart is not None
    assert "There were no interventions and no missed ticks." in chart.caption


@pytest.mark.parametrize(
    ("low", "high", "verdict", "is_warned"),
    [
        (0.9, 0.95, "below the expected range", True),
        (0.05, 0.2, "within the expected range", False),
        (0.13, 0.2, "within", False),
    ],
)
def test_the_first_evaluation_is_compared_with_the_expectation_from_pretraining(
    low: float, high: float, verdict: str, is_warned: bool, tmp_path: Path
) -> None:
    """The first evaluation scores 0.12."""
    config = write_run(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    expected = {"low": low, "high": high, "median": low, "tolerance": 0.02, "plants": 39}
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "start": {"networks": {"expected": expected}}}))
    run = read_run(tmp_path, config)
    sheet = pretraining_sheet(run)
    assert sheet is not None
    (verdict_text,) = [value for name, value in sheet.rows if name == "first evaluation on the rig"]
    assert verdict_text.startswith(f"0.12, {verdict}")
    assert any("identify it again" in line for line in tables.warnings(run, facts_from_files(run), [])) == is_warned
