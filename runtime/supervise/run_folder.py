"""The folder a run leaves behind: what ran (``config.yaml``), where and with what (``meta.json``)."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from runtime.config.resolve import save_resolved
from runtime.config.schema import RunConfig

_PACKAGES: Final = ("onrig", "numpy", "onnxruntime", "pyserial", "pyzmq", "pyyaml", "msgspec", "torch")


def fresh_folder(parent: Path, name: str) -> Path:
    """Pick a folder that does not exist yet: ``parent/name-YYYYmmdd-HHMMSS``, numbered if need be."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = parent / stem
    n = 1
    while folder.exists():
        n += 1
        folder = parent / f"{stem}-{n}"
    return folder


def write_run_folder(folder: Path, config: RunConfig) -> Callable[[], None]:
    """Create the folder and write what is known before anything moves; FileExistsError if it holds a run already.

    Returns a function that takes everything back which has come into the folder since: for a run that never started.
    """
    if (folder / "config.yaml").exists():
        raise FileExistsError(f"{folder} holds a run already")
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    kept = {path.name for path in folder.iterdir()} if not made else set()

    def take_back() -> None:
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name in kept:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()

    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_resolved(config, folder / "config.yaml")
        (folder / "meta.json").write_bytes(
            msgspec.json.format(msgspec.json.encode({"seed": config.seed, **circumstances()}), indent=2) + b"\n"
        )
    except OSError:
        take_back()
        raise
    return take_back


def complete_summary(folder: Path, exit_reason: str, peak_rss_mb: dict[str, float], fault: str | None = None) -> None:
    """Add to ``summary.json`` what only the supervisor knows; write one even if the replay process could not."""
    path = folder / "summary.json"
    summary: dict[str, object] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        summary = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    summary = {"exit_reason": exit_reason, "fault": fault, **summary, "peak_rss_mb": peak_rss_mb}
    fresh = path.with_suffix(".tmp")
    try:
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        fresh.replace(path)
    except OSError:  # a full disk: what stands there already is better than half of this
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def circumstances() -> dict[str, object]:
    """With what, where and when this process runs."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    revision, dirty = _git()
    return {
        "git_revision": revision,
        "git_dirty": dirty,
        "versions": {"python": platform.python_version(), **versions},
        "board": _board(),
        "cpus": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
    }


def _board() -> str:
    for path in ("/proc/device-tree/model", "/sys/class/dmi/id/product_name"):
        with contextlib.suppress(OSError):
            text = Path(path).read_text(errors="replace").strip("\0\n ")
            if text:
                return f"{text} ({platform.machine()})"
    return platform.machine()


def _git() -> tuple[str | None, bool | None]:
    here = Path(__file__).parent
    try:
        revision, status = (
            subprocess.run(
                ["git", *arguments], cwd=here, capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    return revision, bool(status)
