"""Where a configuration stands: a path, or the name of one beside the file that names it or of a shipped one."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from onrig.runtime.config.problem import hint


def shipped(folder: str = "") -> list[str]:
    """Names of the shipped configurations in a folder of ``configs`` (the top level holds the runs)."""
    root = files("onrig.configs").joinpath(folder) if folder else files("onrig.configs")
    names = [str(p.name) for p in root.iterdir()]
    return sorted(n.removesuffix(".yaml") for n in names if n.endswith(".yaml"))


def find(name: str, folder: str = "", beside: Path = Path()) -> Path:
    """Locate a configuration: a path (from ``beside`` on), or a name without suffix: ``FOLDER/NAME.yaml``.

    A name is looked for beside the file that uses it, then among the shipped ones.
    Raises FileNotFoundError with what there is to choose from.
    """
    path = Path(name)
    if path.suffix or len(path.parts) != 1:
        if is_file(beside / path):
            return beside / path
        raise FileNotFoundError(f"there is no file '{beside / path}'")
    local = beside / folder / f"{name}.yaml"
    if folder and is_file(local):
        return local
    known = shipped(folder)
    if name not in known:
        beside_it = (p.stem for p in (beside / folder).glob("*.yaml")) if folder else ()
        meant = hint(name, {*known, *beside_it})
        raise FileNotFoundError(f"there is no '{name}'{meant}; shipped are: {', '.join(known)}")
    return Path(str(files("onrig.configs").joinpath(*folder.split("/") if folder else (), f"{name}.yaml")))


def is_file(path: Path) -> bool:
    """Tell whether there is such a file; there is none of a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
