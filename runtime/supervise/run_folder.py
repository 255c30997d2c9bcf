"""Run folder: configuration (``config.yaml``), machine and versions (``meta.json``), summary."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.hw.native import Executor, executor, read_executor
from onrig.runtime.config.problem import format_path
from onrig.runtime.files import MAX_JSON_BYTES, open_file, read_file, replace_own_file
from onrig.runtime.log.staged_file import log_files
from onrig.runtime.run_changes import Difference
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved, resolved_text
from onrig.runtime.run_state.checksums import CHECKSUM_FILE as CHECKSUMS
from onrig.runtime.run_state.checksums import SUMMARY_FILE, FileChecksum, measure, read_list, write_list
from onrig.runtime.run_state.completeness import Completeness
from onrig.runtime.run_state.events import EventFile
from onrig.runtime.run_state.folder_access import check_folder, check_path
from onrig.runtime.safety.promise import promise_fields
from onrig.runtime.scoring import FORMAT as SCORE_FORMAT
from onrig.runtime.supervise.post_mortem import FAULT, FRAMES, RECORDS, find_post_mortems

_PACKAGE_NAMES: Final = (
    *("onrig", "numpy", "onnxruntime", "pyserial", "pyzmq", "pyyaml", "msgspec", "torch"),
    *("gymnasium", "mujoco", "box2d"),
)


_RESULTS_PATHSPEC: Final = ":(exclude,top)docs/experiments/data"
"""Files that may change without making the working tree dirty, because they are results."""
_MAX_LINE_BYTES: Final = 1 << 20
RESUMES_KEY: Final = "resumes"
"""Key of the list of later starts in ``meta.json``."""
_INITIAL_FILES: Final = ("config.yaml", "meta.json")


def fresh_folder(parent: Path, name: str) -> Path:
    """Return a new folder name: ``parent/name-YYYYmmdd-HHMMSS``, numbered if necessary."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = parent / stem
    n = 1
    while folder.exists():
        n += 1
        folder = parent / f"{stem}-{n}"
    return folder


def occupied_reason(folder: Path, other_names: Collection[str] = ()) -> str | None:
    """Return why a new run cannot use a folder; None if the folder is missing, or empty apart from hidden files and
    ``other_names``.
    """
    if (folder / "config.yaml").exists():
        return "already contains a run"
    if folder.is_dir() and any(
        not path.name.startswith(".") and path.name not in other_names for path in folder.iterdir()
    ):
        return "is not empty and does not contain a run"
    return None


def write_run_folder(
    folder: Path,
    config: RunConfig,
    facts: Mapping[str, object] | None = None,
    files: Mapping[str, bytes] | None = None,
    other_names: Collection[str] = (),
) -> Callable[[], None]:
    """Create the folder and its first files, before any motion; raises FileExistsError if it is occupied.

    ``facts``: additional entries of ``meta.json``; ``files``: additional initial files, by their path in the folder;
    ``other_names``: names of files that the folder may already contain.
    Returns a function for the case that the run does not start: it removes everything added to the folder since the
    start of this call.
    """
    check_path(folder)
    created_folders = [f for f in (folder, *folder.parents) if not f.exists()]
    if not created_folders:
        check_folder(folder)
    if reason := occupied_reason(folder, other_names):
        raise FileExistsError(f"{folder} {reason}")
    existing_names = {path.name for path in folder.iterdir()} if not created_folders else set()

    def undo() -> None:
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name in existing_names:
                continue
            _remove(path)
        for parent in created_folders:
            with contextlib.suppress(OSError):
                parent.rmdir()

    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=folder not in created_folders)
        check_folder(folder)  # now that the folder exists, no other user can change it
        _write_config(folder, config)
        identified_entry = {} if config.identified is msgspec.UNSET else {"identified": config.identified}
        identity_entries = {"run": secrets.token_hex(16), "seed": config.seed, "score_format": SCORE_FORMAT}
        promise_entry = {"promise": promise_fields(config.limits)}
        _write_meta(
            folder, {**identity_entries, **identified_entry, **promise_entry, **environment_facts(), **(facts or {})}
        )
        for name, data in (files or {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            replace_own_file(folder / name, data, durable=True)
        write_list(folder, _measure_files(folder, (*_INITIAL_FILES, *(files or ()))))
    except FileExistsError:  # another run has just created the folder, which must not be undone
        raise
    except OSError:
        undo()
        raise
    return undo


class ReopenedFolder(NamedTuple):
    """Run folder of a resumed run."""

    undo: Callable[[], None]
    """Function that restores the folder if the run does not start."""
    cut: int
    """Number of bytes of a truncated event that were removed from ``events.jsonl``."""


class Resumption(NamedTuple):
    """Data for resuming a run."""

    config: RunConfig
    changes: Sequence[Difference] = ()
    """Permitted changes to the run's configuration."""
    damaged: Sequence[str] = ()
    """Damaged files that the run does not need."""
    run: str = ""
    """Identity of the run, taken from its checkpoint."""


def reopen_run_folder(folder: Path, resumption: Resumption) -> ReopenedFolder:
    """Record the resumption in ``meta.json`` and in the events, write its configuration, and remove a partial last line
    from the events.

    The replay process truncates the other files.  Raises OSError, after which the folder is as it was before.
    """
    config = resumption.config
    previous = {name: _content(folder / name) for name in ("config.yaml", "meta.json", SUMMARY_FILE, CHECKSUMS)}
    existing_names = {path.name for path in folder.iterdir()}
    sizes = {name: _size(folder / name) for name in ("stderr.log", "events.jsonl")}
    tail = _partial_line_bytes(folder / "events.jsonl")

    def undo() -> None:
        with contextlib.suppress(OSError):
            for name, data in previous.items():
                if data is not None and _content(folder / name) != data:
                    replace_own_file(folder / name, data, durable=True)
            for name, size in sizes.items():
                if size is None:
                    (folder / name).unlink(missing_ok=True)
                    continue
                complete_bytes = size - (len(tail) if name == "events.jsonl" else 0)
                with (folder / name).open("r+b") as file:
                    file.truncate(complete_bytes)
                    file.seek(complete_bytes)
                    file.write(tail if name == "events.jsonl" else b"")
            for path in folder.iterdir():
                if path.name not in existing_names:
                    _remove(path)

    meta: dict[str, object] = {}
    with contextlib.suppress(msgspec.DecodeError):
        meta = msgspec.json.decode(previous["meta.json"] or b"{}", type=dict[str, object])
    if resumption.run:
        meta = {**meta, "run": resumption.run}
    resumptions = meta.get(RESUMES_KEY)
    file_list = read_list(folder)
    logs = {path.name for path in log_files(folder)}
    damaged = {*file_list.damaged, *resumption.damaged}
    finished_files = {name: extent for name, extent in file_list.files.items() if name in logs | damaged}
    facts = environment_facts()
    entry = {
        "time": facts["started"],
        **{k: facts[k] for k in ("git_revision", "git_dirty", "versions", "executor", "command")},
    }
    try:
        write_list(folder, finished_files, damaged)  # a kill after this cannot leave the checksum of a changed file
        if load_resolved(folder / "config.yaml") != config:  # otherwise keep the text: policies refer to its hash
            _write_config(folder, config)
        _write_meta(folder, {**meta, RESUMES_KEY: [*(resumptions if isinstance(resumptions, list) else []), entry]})
        if tail:
            with (folder / "events.jsonl").open("r+b") as file:
                file.truncate((sizes["events.jsonl"] or 0) - len(tail))
                os.fsync(file.fileno())
        _log_resumption(folder, resumption)
        write_list(folder, {**finished_files, **_measure_files(folder, _INITIAL_FILES)}, damaged)
    except OSError:
        undo()
        raise
    return ReopenedFolder(undo, len(tail))


def _log_resumption(folder: Path, resumption: Resumption) -> None:
    events = EventFile(folder / "events.jsonl")
    for change in resumption.changes:
        previous, current = (msgspec.json.encode(value).decode() for value in (change.run, change.requested))
        events.write("configuration_changed", setting=format_path(change.path), before=previous, now=current)
    for name in resumption.damaged:
        events.write("file_damaged", file=name)
    events.close()


def _measure_files(folder: Path, names: Iterable[str]) -> dict[str, FileChecksum]:
    """Return the checksums of those of these files that exist; raises OSError."""
    return {name: measure(folder / name) for name in names if (folder / name).is_file()}


def seal_run_folder(folder: Path) -> None:
    """Add the last files of a run to ``checksums.json``, if the replay process has finished."""
    listed = read_list(folder)
    if "episodes.csv" not in listed.files:
        return
    parts = (
        str(post_mortem.relative_to(folder) / name)
        for post_mortem in find_post_mortems(folder)
        for name in (RECORDS, FRAMES, FAULT)
    )
    names = (*_INITIAL_FILES, "events.jsonl", "timing.json", SUMMARY_FILE, *parts)
    with contextlib.suppress(OSError):  # full disk: these files cannot be checked later
        write_list(folder, {**listed.files, **_measure_files(folder, names)}, listed.damaged)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _content(path: Path) -> bytes | None:
    return read_file(path, MAX_JSON_BYTES) if path.exists() else None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def _partial_line_bytes(path: Path) -> bytes:
    """Return the bytes after a file's last line break; empty if the file is missing."""
    if not path.exists():
        return b""
    with open_file(path, None) as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _MAX_LINE_BYTES)
        file.seek(start)
        data = file.read()
    return data[data.rfind(b"\n") + 1 :]


def _write_config(folder: Path, config: RunConfig) -> None:
    replace_own_file(folder / "config.yaml", resolved_text(config).encode(), durable=True)


def _write_meta(folder: Path, meta: dict[str, object]) -> None:
    data = msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n"
    replace_own_file(folder / "meta.json", data, durable=True)


def complete_summary(
    folder: Path, first_entries: dict[str, object], last_entries: dict[str, object], assess: Callable[[], Completeness]
) -> Completeness:
    """Add the supervisor's entries at the start and at the end of ``summary.json``, and return its section ``whole``.

    If the replay process has written no summary, this function writes one, and ``assess`` determines the section.
    """
    path = folder / SUMMARY_FILE
    summary: dict[str, object] = {}
    completeness: Completeness | None = None
    with contextlib.suppress(OSError, msgspec.DecodeError):
        data = read_file(path, MAX_JSON_BYTES)
        completeness = msgspec.json.decode(data, type=_Summary).whole
        summary = msgspec.json.decode(data, type=dict[str, object])
    if completeness is None:
        completeness = assess()
        summary["whole"] = msgspec.to_builtins(completeness)
    summary = {**first_entries, **summary, **first_entries, **last_entries}
    with contextlib.suppress(OSError):  # full disk: keep the old content
        replace_own_file(path, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    return completeness


class _Summary(msgspec.Struct):
    whole: Completeness


def environment_facts() -> dict[str, object]:
    """Return the software versions, a description of the machine, and the current time as the start of the process."""
    versions = {}
    for package in _PACKAGE_NAMES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    revision, is_dirty = _git()
    return {
        "git_revision": revision,
        "git_dirty": is_dirty,
        "versions": {"python": platform.python_version(), **versions},
        "executor": executor(),
        "board": _board(),
        "cpus": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [word.encode(errors="backslashreplace").decode() for word in sys.argv],  # file names are bytes
    }


def find_executor(meta: Mapping[str, object], restarts_key: str) -> Executor | None:
    """Return the executor that computed a run's results, according to its ``meta.json``; None if not recorded.

    ``restarts_key``: key of the list of later starts in ``meta``.
    """
    later_starts = meta.get(restarts_key)
    starts = [meta, *(later_starts if isinstance(later_starts, list) else [])]
    executors = (read_executor(start.get("executor")) for start in starts if isinstance(start, Mapping))
    return next((executor for executor in executors if executor is not None), None)


def _board() -> str:
    for path in ("/proc/device-tree/model", "/sys/class/dmi/id/product_name"):
        with contextlib.suppress(OSError):
            text = Path(path).read_text(errors="replace").strip("\0\n ")
            if text:
                return f"{text} ({platform.machine()})"
    return platform.machine()


def _git() -> tuple[str | None, bool | None]:
    folder = Path(__file__).parent
    try:
        revision, status = (
            subprocess.run(
                # Without locks: if killed at the timeout, git would leave index.lock behind in the user's repository.
                ["git", "--no-optional-locks", *arguments],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", ":/", _RESULTS_PATHSPEC])
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    return revision, bool(status)
