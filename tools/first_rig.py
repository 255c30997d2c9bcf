"""Initial rig, task, run and README of a plant, copied from a template.

A template is a folder that contains ``README.md``, ``bench.yaml`` (texts for the bench section of the README), and the
files to copy. Onrig's templates are in ``docs/examples``, and a plant from another package may name its own folder
(``Plant.template``). The files for any other plant are generated (``onrig.tools.first_rig_plant``).
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from onrig.hw.messages import NAME_BYTES
from onrig.runtime import registry
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import MAX_BYTES, find_config, parse_document
from onrig.runtime.config.problem import ConfigError, hint
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import read_file
from onrig.runtime.safety.limits import Limits
from onrig.runtime.safety.promise import promise_of
from onrig.tools.first_rig_page import Bench, page
from onrig.tools.first_rig_plant import NoTemplate, generate_files, mujoco_model_files, template_of
from onrig.tools.terminal import complain

BENCH_FILE: Final = "bench.yaml"
_SPECIAL_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_]+")
_README_FILE: Final = "README.md"
_PORT_LINES: Final = """\
device:
  # On hardware, in place of the twin, with pace: realtime (`onrig ports` lists the ports):
  # port: {path: /dev/serial/by-id/usb-..., baud: 921600}
"""
MODEL_PLANT: Final = "mujoco"
"""Plant whose files are generated from a model."""


def write_first_rig(folder: Path, plant: str, model: Path | None = None) -> int:
    """Write the initial files to a new folder, and return the exit code."""
    written_paths: list[Path] = []
    try:
        texts = rig_files(plant, rig_name(folder, plant), model)
    except (NoTemplate, ConfigError) as error:
        return complain("init", str(error))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            return complain("init", f"'{folder}' is not empty, and files are never overwritten; choose a new folder")
        for name, text in texts.items():
            written_paths.append(folder / name)
            written_paths[-1].write_text(text, encoding="utf-8")
    except OSError as error:
        with contextlib.suppress(OSError):  # a partially written folder would block the next attempt
            for path in written_paths:
                path.unlink(missing_ok=True)
        return complain("init", f"'{error.filename or folder}' cannot be written: {error.strerror or error}")
    *names, last_name = sorted(texts)
    print(f"{folder}: wrote {', '.join(names)} and {last_name}")
    run = shlex.quote(str(folder / "run.yaml"))
    print(f"try it on the twin: onrig run {run} --set episodes=20; then follow {folder / _README_FILE}")
    return ExitCode.OK


def rig_name(folder: Path, plant: str) -> str:
    """Return the name of the rig: the folder's name, truncated to fit into the device's hello message."""
    return (_SPECIAL_CHARACTERS.sub("-", folder.resolve().name).strip("-") or plant)[:NAME_BYTES].strip("-")


def templates() -> dict[str, Path]:
    """Return the folders of Onrig's templates, by plant."""
    root = Path(str(files("onrig").joinpath("docs", "examples")))
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{BENCH_FILE}"))}


def plant_names() -> tuple[str, ...]:
    """Return the valid values of ``--plant``."""
    return tuple(dict.fromkeys([*templates(), *registry.names(registry.PLANTS)]))


def rig_files(plant: str, name: str, model: Path | None = None) -> dict[str, str]:
    """Return the initial files of a rig called ``name``, by file name.

    Raises NoTemplate if the plant is unknown or has no initial files, and ConfigError if its template is invalid.
    """
    if model is not None and plant != MODEL_PLANT:
        raise NoTemplate(f"--model applies only to --plant {MODEL_PLANT}, not to '{plant}'")
    if plant not in plant_names():
        raise NoTemplate(f"--plant: expected {' or '.join(plant_names())}, got '{plant}'{hint(plant, plant_names())}")
    if plant == MODEL_PLANT:
        if model is None:
            raise NoTemplate(f"--plant {MODEL_PLANT} needs a model: --model MODEL.xml")
        return _adapt_to_name(mujoco_model_files(model), name)
    folder = templates().get(plant) or template_of(plant)
    return _adapt_to_name(generate_files(plant) if folder is None else _read_template(folder), name)


def _read_template(folder: Path) -> dict[str, str]:
    """Return the texts of a template's files, by file name. Raises NoTemplate if they cannot be read."""
    try:
        contents = {path.name: read_file(path, MAX_BYTES) for path in sorted(folder.iterdir()) if _is_copied(path)}
        return {name: content.decode() for name, content in contents.items()}
    except (OSError, UnicodeDecodeError) as error:
        raise NoTemplate(f"the template '{folder}' cannot be read: {error}") from None


def _is_copied(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def _adapt_to_name(texts: Mapping[str, str], name: str) -> dict[str, str]:
    """Adapt a template's files to a rig: set the name in ``rig.yaml``, add the lines for a port to ``run.yaml``, and
    complete the README.
    """
    missing_files = [file for file in (_README_FILE, BENCH_FILE) if file not in texts]
    if missing_files:
        raise NoTemplate(f"the template has no {' and no '.join(missing_files)}")
    bench = convert(parse_document(texts[BENCH_FILE], BENCH_FILE), (), Bench)
    named_texts = {**(dict(_shipped_files(bench.run)) if bench.run else {}), **texts}
    del named_texts[BENCH_FILE]
    try:
        named_texts["rig.yaml"] = _substitute(
            named_texts["rig.yaml"], r"^name: .*\n", f'name: "{name}"  # the firmware must report the same name\n'
        )
        named_texts["run.yaml"] = _substitute(named_texts["run.yaml"], r"^device:\n", _PORT_LINES)
    except KeyError as error:
        raise NoTemplate(f"the template has no {error.args[0]}") from None
    limits = convert(parse_document(named_texts["run.yaml"], "run.yaml"), ("limits",), Limits)
    return {**named_texts, _README_FILE: page(texts[_README_FILE], bench, name, promise_of(limits))}


def _shipped_files(run: str) -> Iterator[tuple[str, str]]:
    """Yield the file names and texts of a shipped configuration's rig, task and run. The run refers to the other two as
    files in its own folder.
    """
    text = _read_shipped(run, "")
    for section, folder in (("rig", "rigs"), ("task", "tasks")):
        (shipped_name,) = re.findall(rf"^{section}: (.*)$", text, re.MULTILINE)
        text = _substitute(text, rf"^{section}: .*\n", f"{section}: {section}.yaml\n")
        yield f"{section}.yaml", _read_shipped(shipped_name, folder)
    yield "run.yaml", text


def _read_shipped(source: str, folder: str) -> str:
    """Return the text of a shipped configuration, preceded by a line that names it."""
    origin = f"{folder}/{source}".lstrip("/")
    return f"# From `onrig init`, based on the shipped {origin}.yaml:\n" + find_config(source, folder).read_text(
        "utf-8"
    )


def _substitute(text: str, pattern: str, replacement: str) -> str:
    new_text, count = re.subn(pattern, lambda match: replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise NoTemplate(f"the template has {count} lines that match {pattern!r}, expected one")
    return new_text
