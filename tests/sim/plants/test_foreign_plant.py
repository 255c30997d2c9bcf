"""A plant of another package, found by its entry points: configuration, twin, shield and drawing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

RUN = """\
rig:
  name: spring
  sensors:
    - {name: position, unit: m, resolution: 1.0e-5}
    - {name: velocity, unit: m/s, resolution: 1.0e-4}
  actuators:
    - {name: voltage, unit: V, resolution: 1.0e-3, low: -5.0, high: 5.0, safe: 0.0}
  observations:
    - {name: position, unit: m, low: -0.5, high: 0.5}
    - {name: velocity, unit: m/s, low: -2.0, high: 2.0}
  lease_periods: 3
task:
  name: rest
  episode_s: 2.0
  start: {position: 0.1, velocity: 0.0}
  reward:
    target: {position: 0.0, velocity: 0.0}
    weights: {position: 10.0, velocity: 1.0}
  normalization: {random_reward: -2.0, reference_reward: -0.1}
rate_hz: 50
episodes: 2
local_learner: false
device:
  pace: lockstep
  twin: {plant: {kind: spring, stiffness: 42.0}}
limits:
  envelope: {velocity: {low: -2.0, high: 2.0}}
  fallback: {kind: safe}
  predicted:
    kind: spring
    position: position
    velocity: velocity
    stiffness_per_s2: 40.0
    damping_per_s: 0.5
    gain_m_per_v_s2: 2.0
"""


CART_POLES = {
    "cartpole": "CartPole",
    "misspelt": "Misspelt",
    "for_floats": "ForFloats",
    "short": "Short",
    "at_a_corner": "AtACorner",
    "later": "Later",
}

CART_POLE = """\
rig:
  name: cartpole
  sensors:
    - {name: position, unit: m, resolution: 1.0e-4}
    - {name: angle, unit: rad, resolution: 1.0e-4}
    - {name: speed, unit: m/s, resolution: 1.0e-3}
    - {name: velocity, unit: rad/s, resolution: 1.0e-3}
  actuators:
    - {name: force, unit: N, resolution: 1.0e-3, low: -10.0, high: 10.0, safe: 0.0}
  observations:
    - {name: position, unit: m, low: -2.4, high: 2.4}
    - {name: angle, unit: rad, low: -0.5, high: 0.5}
    - {name: speed, unit: m/s, low: -5.0, high: 5.0}
    - {name: velocity, unit: rad/s, low: -5.0, high: 5.0}
  lease_periods: 3
task:
  name: balance
  episode_s: 2.0
  start: {position: 0.0, angle: 0.05, speed: 0.0, velocity: 0.0}
  reward:
    target: {position: 0.0, angle: 0.0, speed: 0.0, velocity: 0.0}
    weights: {position: 1.0, angle: 5.0, speed: 0.1, velocity: 0.1}
  normalization: {random_reward: -5.0, reference_reward: -0.1}
rate_hz: 50
episodes: 2
evaluate_every: 0
device:
  pace: lockstep
  twin: {plant: {kind: cartpole}}
learner: {updates_per_episode: 5}
limits: {}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages, with the entry points of a package that provides a plant."""
    dist_info = tmp_path / "site" / "springs-1.0.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: springs\nVersion: 1.0\n")
    (dist_info / "entry_points.txt").write_text(
        "[onrig.plants]\nspring = tests.sim.plants.spring:Spring\n"
        + "".join(f"{kind} = tests.sim.plants.cartpole:{name}\n" for kind, name in CART_POLES.items())
        + "[onrig.boxes]\nspring = tests.sim.plants.spring:SpringBox\n"
    )
    (tmp_path / "spring.yaml").write_text(RUN)
    (tmp_path / "cartpole.yaml").write_text(CART_POLE)
    return dist_info.parent


def dist_info(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def onrig(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return dist_info(site, "-m", "onrig.tools.cli", *arguments)


def test_a_third_party_plant_passes_through_twin_shield_and_drawing(site: Path) -> None:
    done = onrig(site, "safety", "spring.yaml", "--episodes", "24", "--lockstep", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 breaches") == 2
    assert "predicted" in done.stdout, "the shield was never needed"
    code = "from onrig.tools.load import load; from onrig.tools.drawings import drawing_of; "
    drawn = dist_info(site, "-c", f"{code}print(drawing_of(load('spring.yaml')))")
    assert "'kind': 'track'" in drawn.stdout, drawn.stderr
    done = onrig(site, "check", "spring.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_mistakes_are_reported_like_ours(site: Path) -> None:
    for override, message in (
        ("device.twin.plant.stiffness=80", "stiffness_per_s2 80, but the shield covers 32 to 48"),
        ("limits.predicted.kind=sprung", "did you mean 'spring'?"),
        ("device.twin.plant.mass=1", "unknown field 'mass'"),
        ("limits.predicted.velocity=speed", "no observation 'speed'"),
    ):
        done = onrig(site, "check", "spring.yaml", "--set", override)
        assert done.returncode == 2, done.stdout + done.stderr
        assert message in done.stdout + done.stderr


def test_a_broken_package_affects_only_those_who_use_it(site: Path) -> None:
    (site / "springs-1.0.dist-info" / "entry_points.txt").write_text(
        "[onrig.plants]\nspring = nothing.of.that.name:Spring\nours = onrig.sim.plants:Pendulum\n"
    )
    done = onrig(site, "check", "pendulum")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    broken = "springs registers 'spring' in onrig.plants, which does not load: ModuleNotFoundError: No module named"
    for kind, message in (("spring", broken), ("ours", "'ours' of onrig.plants is not a struct with the tag 'ours'")):
        done = onrig(site, "check", "pendulum", "--set", f"device.twin.plant={{kind: {kind}}}")
        assert done.returncode == 2, done.stdout + done.stderr
        assert message in done.stderr


BROKEN_BOX = """\
from tests.sim.plants.spring import SpringBox

class Broken(SpringBox, frozen=True, tag="spring"):
    def %s(self, context):
        return {}["stiffness"]
"""


@pytest.mark.parametrize("member", ["findings", "prediction"])
def test_an_error_in_its_box_is_shown_to_the_user(site: Path, member: str) -> None:
    (site / "broken_box.py").write_text(BROKEN_BOX % member)
    entries = site / "springs-1.0.dist-info" / "entry_points.txt"
    entries.write_text(entries.read_text().replace("tests.sim.plants.spring:SpringBox", "broken_box:Broken"))
    done = onrig(site, "check", "spring.yaml")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the plant box 'spring' raises KeyError: 'stiffness'" in done.stderr
    assert f"({site}/broken_box.py, line 5)" in done.stderr


def run_untrained(site: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run the cart-pole under the first policy of a learner, without the learner."""
    code = "from pathlib import Path; from onrig.tools.load import load; "
    code += "from onrig.tools.bench.link.rig_end import random_policy; "
    made = dist_info(site, "-c", f"{code}Path('first.onnx').write_bytes(random_policy(load('cartpole.yaml')))")
    assert made.returncode == 0, made.stderr
    settings = [word for s in ("policy=first.onnx", "local_learner=false", *overrides) for word in ("--set", s)]
    return onrig(site, "run", "cartpole.yaml", "--run-dir", "run", *settings)


@pytest.mark.usefixtures("no_plots")
def test_a_cart_pole_with_cosines_runs(site: Path) -> None:
    checked = onrig(site, "check", "cartpole.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = run_untrained(site, "device.pace={scaled: 20}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("misspelt", "raises AttributeError: '_ScalarMaths' object has no attribute 'cosine'"),
        ("for_floats", "raises TypeError: only "),
        ("short", "returns derivatives of 3 values, for 4 states"),
        ("at_a_corner", "raises ZeroDivisionError: float division by zero"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "run"])
def test_an_error_in_its_code_is_shown_to_the_user(site: Path, verb: str, kind: str, said: str) -> None:
    dry = ["--dry-run"] if verb == "run" else []
    done = onrig(site, verb, "cartpole.yaml", *dry, "--set", f"device.twin.plant.kind={kind}")
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert f"the plant '{kind}' {said}" in line
    if kind != "short":
        assert re.search(r"cartpole\.py, line \d+\)$", line)


@pytest.mark.usefixtures("no_plots")
def test_an_error_during_a_run_ends_it_and_is_not_reported_as_a_broken_cable(site: Path) -> None:
    done = run_untrained(site, "device.pace={scaled: 20}", "device.twin.plant.kind=later")
    assert done.returncode == 70, done.stdout + done.stderr
    said = re.compile(
        r"the plant 'later' raises LookupError: no entry in the friction table \(\S+/cartpole\.py, line \d+\)"
    )
    assert said.search(done.stderr), done.stderr
    assert "hung up" not in done.stderr
    summary = json.loads((site.parent / "run" / "summary.json").read_text())
    assert said.search(summary["exit_reason"])
    assert summary["fault"] == "plant_failed"
