"""``onrig doctor``: order, exit codes, JSON, and its imports before it knows that the wheels work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.cli import main
from onrig.tools.doctor import examination as doctor
from onrig.tools.doctor import punctuality
from onrig.tools.doctor.finding import (
    REAL_TIME_PAGE,
    Check,
    Needs,
    Verdict,
    exit_code,
    report_data,
    report_failure,
    report_pass,
    report_warning,
)
from onrig.tools.doctor.ports import examine_keys
from onrig.tools.doctor.punctuality import LoopResults, Measurement
from onrig.tools.doctor.run_needs import complete_run_bytes, determine_needs, learner_bytes
from onrig.tools.doctor.wheels import WHEELS, Wheel, WheelFacts
from onrig.tools.key_folder import make_keys
from onrig.tools.load import load, load_for_rig
from onrig.tools.machine import Machine
from onrig.tools.run import _warn_about_disk_space
from tests.tools.doctor.boards import RIG, checks_by_name

MEASUREMENT = Measurement(200, 0, 30.0, 60.0, 90.0, 120.0, True, [])


def report_all_working(wheels: Iterable[Wheel]) -> list[WheelFacts]:
    return [WheelFacts(wheel, "1.0", 0, "") for wheel in wheels]


@pytest.fixture(autouse=True)
def skip_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_at_once(
        machine: Machine, needs: Needs, seconds: float, on_progress: Callable[[float], None]
    ) -> LoopResults:
        on_progress(seconds)
        return LoopResults(MEASUREMENT, "", None, False)

    monkeypatch.setattr(punctuality, "read_loop", read_at_once)
    monkeypatch.setattr(doctor, "read_wheels", report_all_working)


def test_every_finding_is_a_line_and_every_problem_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--quick"])
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert code in (ExitCode.OK, ExitCode.PREFLIGHT)
    assert "\033" not in out
    assert "\r" not in out
    for i, line in enumerate(lines[:-1]):
        if line.startswith(("WARN", "FAIL")):
            assert lines[i + 1].lstrip().startswith("-> ")
    assert lines[-1].endswith(" fail")
    names = [line.split()[1] for line in lines if line.startswith(("PASS", "WARN", "FAIL"))]
    expected = "kernel python c-library wheel-numpy wheel-torch sched-fifo memory-lock cpu governor clocksource disk"
    expected += " ports loop"
    assert [n for n in names if n in expected.split()] == expected.split()


def test_json_replaces_the_text_report(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "pendulum", "--set", "device.pace=realtime", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"machine", "checks"}
    assert {"board", "architecture", "cpus", "kernel", "python"} <= set(report["machine"])
    assert all({"name", "verdict", "found", "remedy"} <= set(row) for row in report["checks"])
    failures = [row for row in report["checks"] if row["verdict"] == "FAIL"]
    assert code == (ExitCode.PREFLIGHT if failures else ExitCode.OK)
    (loop,) = [row for row in report["checks"] if row["name"] == "loop"]
    assert loop["figures"]["p99_us"] == 60.0
    assert "50 Hz" in loop["found"]


def test_json_can_be_written_to_a_file_in_addition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--quick", "--json", str(tmp_path / "report.json")])
    assert json.loads((tmp_path / "report.json").read_text())["checks"]
    assert "kernel" in capsys.readouterr().out


def test_an_unwritable_report_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", str(tmp_path / "no" / "where.json")]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("word", ["pendulum", "my_rig.yaml"])
def test_a_configuration_given_to_json_is_refused_and_not_overwritten(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json", word]) == ExitCode.CONFIGURATION
    assert f"onrig doctor {word} --json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_broken_configuration_is_a_usage_error_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rig.yaml").write_text("rig: pendulum\ntask: 7\n")
    assert main(["doctor", str(tmp_path / "rig.yaml")]) == ExitCode.CONFIGURATION
    assert "rig.yaml:" in capsys.readouterr().err


def test_a_missing_configured_port_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "pendulum", "--set", "device.pace=realtime", "--device", str(tmp_path / "ttyUSB0")])
    assert code == ExitCode.PREFLIGHT
    assert "no such port" in capsys.readouterr().out


def test_checks_that_need_a_broken_wheel_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = [WheelFacts(w, "1.0", -4 if w.package == "numpy" else 0, "") for w in WHEELS]
    checks = checks_by_name(doctor.examine(Machine(), RIG, wheels, quick=True))
    assert checks["wheel-numpy"].verdict is Verdict.FAIL
    assert "crashes with SIGILL" in checks["wheel-numpy"].finding
    assert "were not checked" in checks["loop"].finding
    assert "keys" not in checks


def test_nothing_that_a_broken_wheel_could_kill_is_imported_before_the_wheels_are_tried() -> None:
    code = "import sys, onrig.tools.doctor.examination; print(*sorted({n.split('.')[0] for n in sys.modules}))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    heavy_packages = {"numpy", "onnxruntime", "zmq", "yaml", "msgspec", "serial", "torch", "matplotlib", "rich"}
    assert set(process.stdout.split()) & heavy_packages == set()


def test_a_subject_that_fails_is_reported_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_from_check(machine: Machine, needs: Needs) -> Iterable[Check]:
        raise ZeroDivisionError("odd board")

    monkeypatch.setattr(doctor, "_LATER_EXAMINATIONS", (("cpu", raise_from_check), *doctor._LATER_EXAMINATIONS[2:]))
    checks = checks_by_name(doctor.examine(Machine(), Needs(), report_all_working(WHEELS), quick=True))
    assert "ZeroDivisionError: odd board" in checks["cpu"].finding
    assert {"governor", "disk", "loop"} <= set(checks)


def test_only_a_failure_changes_the_exit_code() -> None:
    assert exit_code([report_pass("a", ""), report_warning("b", "", "")]) == 0
    assert exit_code([report_pass("a", ""), report_failure("b", "", "")]) == 3
    assert report_data({}, [report_pass("a", "x")]) == {
        "machine": {},
        "checks": [{"name": "a", "verdict": "PASS", "found": "x", "remedy": ""}],
    }


def test_a_run_is_checked_for_what_its_configuration_needs(tmp_path: Path) -> None:
    settings = ["device.pace={scaled: 10}", "realtime={priority: 20, cpu: 3}", "local_learner=false"]
    settings += [
        'link={listen: "tcp://*:5555", keys: "K/rig"}',
        'selection={strategy: "FIFO[Uniform]", capacity: 1000}',
    ]
    needs = determine_needs(load_for_rig("pendulum", settings), "pendulum", tmp_path, "/dev/x")
    assert (needs.rate_hz, needs.priority, needs.cpu, needs.realtime) == (500.0, 20, 3, True)
    assert (needs.port, needs.keys, needs.learner, needs.folder) == ("/dev/x", Path("K/rig"), False, tmp_path)
    longer_needs = determine_needs(load_for_rig("pendulum", [*settings, "episodes=5000"]), "pendulum", tmp_path, None)
    assert longer_needs.disk_bytes > 2 * needs.disk_bytes > 0
    needs_without_log = determine_needs(
        load_for_rig("pendulum", [*settings, "log.mcap=false"]), "pendulum", tmp_path, None
    )
    assert 0 < needs_without_log.disk_bytes < needs.disk_bytes - 200_000_000
    assert needs.shm_bytes > 1 << 20


def test_a_learner_needs_room_for_its_sampler_and_for_links_between_experiences() -> None:
    def needed_bytes(strategy: str, *overrides: str) -> int:
        selection = f"selection={{strategy: '{strategy}', capacity: 1000}}"
        return learner_bytes(load("pendulum", [selection, *overrides]))

    def bytes_for_section(section: str) -> int:
        learner = f"learner={{{section}, updates_per_episode: 1}}"
        return needed_bytes("FIFO[Uniform]", learner, "exploration={process: own}")

    base_bytes = needed_bytes("FIFO[Uniform]")
    assert needed_bytes("FIFO[NERS]") == base_bytes + 26_000
    assert needed_bytes("FIFO[Uniform]", "learner={algorithm: rainbow, updates_per_episode: 1}") == base_bytes + 200_000
    behaviour_bytes = bytes_for_section("algorithm: sac") - base_bytes
    assert bytes_for_section("refer: {}") == base_bytes + behaviour_bytes + 9_000
    assert bytes_for_section("algorithm: vracer") == base_bytes + behaviour_bytes + 230_000
    assert bytes_for_section("algorithm: acer") == base_bytes + behaviour_bytes + 209_000


def test_a_lockstep_run_needs_no_real_time() -> None:
    assert not determine_needs(load_for_rig("pendulum"), "pendulum", Path("runs"), None).realtime


def test_keys_readable_by_others_fail_and_private_ones_pass(tmp_path: Path) -> None:
    make_keys(tmp_path / "K")
    needs = RIG._replace(listens=True, keys=tmp_path / "K" / "rig")
    (good_check,) = examine_keys(Machine(), needs)
    assert good_check.verdict is Verdict.PASS
    assert "admitted: learner" in good_check.finding
    (tmp_path / "K" / "rig" / "secret.key").chmod(0o644)
    (readable_check,) = examine_keys(Machine(), needs)
    assert readable_check.verdict is Verdict.FAIL
    assert "chmod 600" in readable_check.remedy


@pytest.mark.parametrize(
    ("needs", "verdicts"),
    [
        (Needs(), []),
        (RIG, [Verdict.PASS]),
        (RIG._replace(listens=True), [Verdict.WARN]),
        (RIG._replace(listens=True, keys=Path("no/where")), [Verdict.FAIL]),
    ],
)
def test_keys_are_checked_if_a_learner_is_to_connect(needs: Needs, verdicts: list[Verdict]) -> None:
    assert [check.verdict for check in examine_keys(Machine(), needs)] == verdicts


def test_the_sections_named_in_remedies_are_on_their_page() -> None:
    root = Path(doctor.__file__).parents[2]
    page = (root / REAL_TIME_PAGE).read_text()
    sources = "".join(path.read_text() for path in (root / "tools" / "doctor").glob("*.py"))
    sections_named = set(re.findall(r"\{REAL_TIME_PAGE\}, '([^']+)'", sources))
    assert sections_named == {"A kernel", "The governor"}
    assert all(f"\n## {section}\n" in page for section in sections_named)


def test_a_disk_too_small_for_the_complete_run_is_reported_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_for_rig("pendulum")
    required = complete_run_bytes(config)
    free_bytes = required
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free_bytes, f_frsize=1))
    _warn_about_disk_space(config, tmp_path)
    assert capsys.readouterr().err == ""
    free_bytes = required - 1
    _warn_about_disk_space(config, tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    assert "the complete run may need" in line
    assert "log.max_bytes" in line
