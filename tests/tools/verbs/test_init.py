"""Files written by ``onrig init``: a plant's template under another name, or generated from a plant or a model."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import msgspec
import pytest

from onrig.runtime import registry
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.safety.promise import promise_of
from onrig.sim.plants.pendulum import Pendulum
from onrig.sim.plants.plant import Plant
from onrig.tools.cli import VERBS, main
from onrig.tools.first_rig import plant_names, rig_files, rig_name, templates
from onrig.tools.first_rig_plant import NoTemplate, generate_files, mujoco_model_files
from onrig.tools.load import load
from tests.docs.commands import ROOT, commands_of
from tests.sim.plants.cartpole import CartPole

SHIPPED = ("magman", "pendulum")
MODEL = ROOT / "tests/sim/plants/pole.xml"


@pytest.fixture(autouse=True)
def _isolate_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after each test: plants in files are registered for the process, and their trust is in its environment."""
    monkeypatch.setattr(registry, "_plugin_files", {group: {} for group in registry.GROUPS})
    monkeypatch.setenv("ONRIG_TRUST", "")


def skip_if_unavailable(plant: str) -> None:
    """Skip a plant of MuJoCo if that is not installed."""
    if plant == "inverted-double-pendulum":
        pytest.importorskip("mujoco")


def init_folder(folder: Path, plant: str) -> Path:
    """A folder filled by the verb."""
    assert main(["init", str(folder), "--plant", plant]) == ExitCode.OK
    return folder


def test_each_common_plant_has_a_template() -> None:
    names = {"beam", "blank", "cartpole", "inverted-double-pendulum", "magman", "motor", "pendulum"}
    assert set(templates()) == names
    assert set(plant_names()) == names | set(registry.names(registry.PLANTS))


@pytest.mark.parametrize("plant", SHIPPED)
def test_a_template_based_on_a_shipped_run_is_that_run_under_another_name(plant: str, tmp_path: Path) -> None:
    folder = init_folder(tmp_path / "my bench", plant)
    source = {"pendulum": "pendulum-hardware"}.get(plant, plant)
    created, original = load(str(folder / "run.yaml")), load(source)
    assert created.rig.name == "my-bench"
    rig = msgspec.structs.replace(created.rig, name=original.rig.name)
    assert msgspec.structs.replace(created, rig=rig) == original
    assert "# plants that the shield's guarantee covers" in (folder / "run.yaml").read_text()
    assert f"for this rig is **{promise_of(created.limits).basis}**" in (folder / "README.md").read_text()


@pytest.mark.parametrize("plant", sorted(set(templates()) - set(SHIPPED)))
def test_an_example_equals_the_written_files_except_for_name_and_bench(plant: str, tmp_path: Path) -> None:
    example, folder = templates()[plant], init_folder(tmp_path / "my-rig", plant)
    example_files = {p.name for p in example.iterdir() if p.is_file()} - {"bench.yaml"}
    assert {p.name for p in folder.iterdir()} == example_files
    for name in example_files - {"rig.yaml", "run.yaml", "README.md"}:
        assert (folder / name).read_text() == (example / name).read_text()
    first_paragraph = (example / "README.md").read_text().partition("\n")[2].strip()
    assert (folder / "README.md").read_text().startswith(f"# my-rig\n\n{first_paragraph}\n\n## On the bench\n")


@pytest.mark.parametrize("plant", sorted(templates()))
def test_the_files_refer_to_each_other_wherever_they_are(
    plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_if_unavailable(plant)
    init_folder(tmp_path / "here", plant).rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "there/run.yaml"]) == ExitCode.OK
    assert "rig here, task " in capsys.readouterr().out
    assert "# port: {path: /dev/serial/by-id/usb-..., baud: 921600}" in (tmp_path / "there/run.yaml").read_text()


@pytest.mark.parametrize("plant", sorted(templates()))
def test_commands_in_the_readme_are_valid(
    plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_if_unavailable(plant)
    folder = init_folder(tmp_path / "bench", plant)
    monkeypatch.chdir(folder)
    readme_text = (folder / "README.md").read_text()
    assert "$" not in readme_text
    n_commands = 0
    for command in commands_of(folder / "README.md"):
        # Nothing has been identified yet, and there is no device.
        text = command.text.replace("--set identified=identified/identified.yaml", "").replace("PORT", "/dev/null")
        program, verb, *arguments = shlex.split(text)
        assert program == "python" or verb in VERBS
        if verb in ("check", "run"):
            dry_run_arguments = ["--dry-run"] if verb == "run" and "--dry-run" not in arguments else []
            assert main([verb, *arguments, *dry_run_arguments]) == ExitCode.OK, (text, capsys.readouterr().err)
            n_commands += 1
    assert n_commands >= 6


# -- generated files ---------------------------------------------------------------------------------------------------


def test_a_mujoco_model_becomes_a_rig_that_passes_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco")
    assert main(["init", str(tmp_path / "my pole"), "--plant", "mujoco", "--model", str(MODEL)]) == ExitCode.OK
    monkeypatch.chdir(tmp_path / "my pole")
    assert main(["check", "."]) == ExitCode.OK, capsys.readouterr().err
    run = load("run.yaml")
    assert [(s.name, s.unit, s.wrap) for s in run.rig.sensors] == [
        ("slide", "m", False), ("angle", "rad", True), ("slide_velocity", "m/s", False), ("velocity", "rad/s", False)
    ]  # fmt: skip
    (push,) = run.rig.actuators
    assert (push.name, push.unit, push.low, push.high) == ("push", "1", -1.0, 1.0), "its gear is not 1"
    assert (run.rig.observations[0].low, run.rig.observations[0].high) == (-1.0, 1.0)
    assert [i.observation for i in run.task.inputs or ()].count("angle") == 2
    assert (tmp_path / "my pole" / "pole.xml").read_text() == MODEL.read_text()


def test_names_that_do_not_fit_a_frame_are_replaced(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    model = tmp_path / "m.xml"
    text = MODEL.read_text().replace('name="slide"', 'name="the left slide joint"')
    model.write_text(text.replace('joint="slide"', 'joint="the left slide joint"'))
    texts = mujoco_model_files(model)
    assert (
        '"the left slide joint": "the_left_slide_j", "the left slide joint_velocity": "the_left_sli_vel"'
        in (texts["run.yaml"])
    )
    assert "{name: the_left_sli_vel, unit: m/s" in texts["rig.yaml"]


def test_a_model_with_other_files_is_left_in_its_place(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    model_path = tmp_path / "whole.xml"
    model_path.write_text(f'<mujoco><include file="{MODEL}"/></mujoco>')
    texts = mujoco_model_files(model_path)
    assert "whole.xml" not in texts
    assert str(model_path) in texts["run.yaml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--plant pendulm", "(did you mean 'pendulum'?)"),
        ("--plant mujoco", "--plant mujoco needs a model: --model MODEL.xml"),
        ("--plant motor --model x.xml", "--model applies only to --plant mujoco, not to 'motor'"),
        ("--plant linear", "no default for states, actions, A, B: use --plant blank"),
    ],
)
def test_files_that_cannot_be_written_are_reported_in_one_line(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "rig"), *words.split()]) == ExitCode.CONFIGURATION
    error_output = capsys.readouterr().err
    assert message in error_output
    assert error_output.count("\n") == 1
    assert not (tmp_path / "rig").exists()


@pytest.mark.parametrize("text", [None, "<mujoco>", '<mujoco><worldbody><light name="a"/></worldbody></mujoco>'])
def test_an_invalid_model_is_reported_in_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco")
    model = tmp_path / "m.xml"
    if text is not None:
        model.write_text(text)
    words = ["init", str(tmp_path / "rig"), "--plant", "mujoco", "--model", str(model)]
    assert main(words) == ExitCode.CONFIGURATION
    error_output = capsys.readouterr().err
    assert error_output.startswith(f"onrig init: {model}: ")
    assert error_output.count("\n") == 1


class ForeignPlant(CartPole, frozen=True, tag="foreign"):
    """A plant of another package."""


class TemplatePlant(Pendulum, frozen=True, tag="with_template"):
    """A plant of another package, with a template."""

    template = "../../../docs/examples/motor"


@pytest.fixture
def register_plants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both, as if registered by packages."""
    kinds: dict[str, type[Plant]] = {"foreign": ForeignPlant, "with_template": TemplatePlant}
    names, original_load = registry.names, registry.load

    def load_registered(group: str, name: str) -> object:
        return kinds[name] if group == registry.PLANTS and name in kinds else original_load(group, name)

    monkeypatch.setattr(registry, "names", lambda g: (*names(g), *(kinds if g == registry.PLANTS else ())))
    monkeypatch.setattr(registry, "load", load_registered)


@pytest.mark.usefixtures("register_plants")
def test_a_plant_of_another_package_has_its_template_or_generated_files(tmp_path: Path) -> None:
    created_config = load(str(init_folder(tmp_path / "theirs", "with_template")))
    assert (created_config.rig.name, created_config.task.name) == ("theirs", "speed")
    run = load(str(init_folder(tmp_path / "lab", "foreign")))
    assert [s.name for s in run.rig.sensors] == ["position", "angle", "speed", "velocity"]
    assert run.device.twin is not None
    assert msgspec.to_builtins(run.device.twin["plant"])["kind"] == "foreign"


def test_a_failing_plant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Plant, *args: object) -> tuple[float, ...]:
        raise LookupError("no table")

    monkeypatch.setattr(ForeignPlant, "derivative", fail)
    monkeypatch.setattr(registry, "load", lambda group, name: ForeignPlant)
    with pytest.raises(NoTemplate, match=r"the plant 'foreign': LookupError: no table"):
        generate_files("foreign")


def test_a_template_with_missing_parts_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("onrig.tools.first_rig.templates", lambda: {"half": tmp_path})
    with pytest.raises(NoTemplate, match=r"the template has no README.md and no bench.yaml"):
        rig_files("half", "x")
    (tmp_path / "README.md").write_text("# Half\n")
    (tmp_path / "bench.yaml").write_text("gentle: '1'\ngentle_words: one\ntenth: ''\n")
    with pytest.raises(NoTemplate, match=r"the template has no rig.yaml"):
        rig_files("half", "x")


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_non_empty_folder_is_left_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["init", str(tmp_path)]) == ExitCode.CONFIGURATION
    assert f"'{tmp_path}' is not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert main(["init", str(tmp_path / "notes.txt")]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == f"onrig init: '{tmp_path / 'notes.txt'}' cannot be written: File exists\n"


def test_a_full_disk_leaves_nothing_that_prevents_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, folder = Path.write_text, tmp_path / "my rig"

    def raise_no_space(path: Path, text: str, encoding: str) -> int:
        if path.name == "run.yaml":
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, encoding)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", raise_no_space)
        assert main(["init", str(folder)]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == f"onrig init: '{folder}' cannot be written: No space left on device\n"
    assert main(["init", str(folder)]) == ExitCode.OK
    assert f"onrig run '{folder}/run.yaml'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("lab", "lab"),
        ("my rig (2)", "my-rig-2"),
        ("a-name-far-too-long", "a-name-far-too-l"),
        ("ü", "pendulum"),
        ("12", "12"),
    ],
)
def test_a_rig_is_named_after_its_folder_as_far_as_the_wire_permits(folder: str, name: str, tmp_path: Path) -> None:
    assert rig_name(tmp_path / folder, "pendulum") == name
    assert load(str(init_folder(tmp_path / folder, "pendulum") / "run.yaml")).rig.name == name
