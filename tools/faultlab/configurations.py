"""Configurations that somebody, or something, has spoilt: made from the shipped ones, and judged by what must hold.

`mutants` makes them, `judge` tells what a mutant brings about that it must not.
"""

from __future__ import annotations

import contextlib
import io
import re
import resource
import time
import traceback
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from onrig.runtime.config.document import load_document
from onrig.runtime.config.resolve import find, shipped
from onrig.runtime.config.yaml_nodes import Data
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.tools import check
from onrig.tools.faultlab.spoiling import emitted, spoil_text, spoil_tree
from onrig.tools.load import load_for_rig
from onrig.tools.rehearsal import rehearse

_PLACED: Final = re.compile(r".+:[1-9]\d*:[1-9]\d*: .+")
_NO_NUMBER: Final = re.compile(r"(?<!\w)(?:nan|inf)(?!\w)")
_MAX_SECONDS: Final = 30.0
"""Of processor time for one configuration, its shield's tables included."""
_MAX_GROWTH_BYTES: Final = 1 << 30
_MOST_CHANGES: Final = 3
_INLINE_SHARE: Final = 0.7
_OVERRIDE_SHARE: Final = 0.1
_RAW_SHARE: Final = 0.15


class Mutant(NamedTuple):
    """One spoilt configuration."""

    name: str
    content: bytes
    overrides: tuple[str, ...] = ()


class Finding(NamedTuple):
    """What a mutant did that no configuration may do."""

    mutant: Mutant
    what: str


def mutants(seed: int) -> Iterator[Mutant]:
    """Yield mutants without end; the same seed gives the same ones."""
    rng = np.random.default_rng(seed)
    bases = [_base(name, inline=inline) for name in shipped() for inline in (False, True)]
    for n in count():
        at = 2 * int(rng.integers(len(bases) // 2)) + int(rng.random() < _INLINE_SHARE)
        tree = bases[at]
        overrides: tuple[str, ...] = ()
        for _ in range(1 + int(rng.integers(_MOST_CHANGES))):
            tree = spoil_tree(tree, rng)
        if rng.random() < _OVERRIDE_SHARE:
            overrides = (f"{_path(bases[at], rng)}={emitted(spoil_tree(_leaf(bases[at], rng), rng))}",)
        content = emitted(tree, block=True).encode("utf-8", "surrogatepass")
        if rng.random() < _RAW_SHARE:
            content = spoil_text(content, rng)
        yield Mutant(f"{seed}-{n}", content, overrides)


def judge(mutant: Mutant, folder: Path, *, max_seconds: float = _MAX_SECONDS) -> Finding | None:
    """Check a mutant in this process, as `onrig check --explain` would; None where all is as it must be.

    Exit code 0 or 2 and no traceback; each problem at a place; nothing on the terminal that is not text; bounded time
    and memory; and where the configuration is called sound, all that a run makes of it can be made and is a number.
    """
    path = folder / "mutant.yaml"
    path.write_bytes(mutant.content)
    began, before = time.process_time(), _peak_bytes()
    try:
        what = _wrong(path, mutant.overrides)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    if what is None and time.process_time() - began > max_seconds:
        what = f"took {time.process_time() - began:.1f} s of processor time"
    if what is None and _peak_bytes() - before > _MAX_GROWTH_BYTES:
        what = f"took {(_peak_bytes() - before) / 1e6:.0f} MB"
    return None if what is None else Finding(mutant, what)


def _wrong(path: Path, overrides: tuple[str, ...]) -> str | None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = check.main([str(path), *(f"--set={o}" for o in overrides)])
    said = out.getvalue() + err.getvalue()
    unclean = next((c for c in said if c != "\n" and not c.isprintable()), None)
    if unclean is not None:
        return f"printed {unclean!r}"
    if code not in (ExitCode.OK, ExitCode.CONFIGURATION):
        return f"exit code {code}: {said[:500]}"
    lines = err.getvalue().splitlines()
    if code and not lines:
        return "refused without a word"
    placeless = [line for line in lines if not _PLACED.fullmatch(line)]
    if placeless:
        return f"a problem without a place: {placeless[0]}"
    if code:
        return None
    given = path.read_text() + "".join(overrides)
    return _unbuildable(load_for_rig(str(path), overrides), may_say=set(_NO_NUMBER.findall(given)))


def _unbuildable(config: RunConfig, may_say: set[str]) -> str | None:
    from onrig.tools.explain import tables

    for table in tables(config):
        for line in str(table).splitlines():
            if not line.replace("°", "").isprintable():
                return f"the explanation holds {line!r}"
            if not set(_NO_NUMBER.findall(line)) <= may_say:  # a unit may be called so
                return f"the explanation says: {line}"
    return rehearse(config)


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _base(name: str, *, inline: bool) -> Data:
    """A shipped configuration, its rig and task spelled out where ``inline``."""
    data = load_document(find(name)).data
    if inline and isinstance(data, dict):
        parts = {key: load_document(find(str(data[key]), folder)).data for key, folder in _PARTS.items()}
        return {**data, **parts}
    return data


_PARTS: Final = {"rig": "rigs", "task": "tasks"}


def _path(tree: Data, rng: np.random.Generator) -> str:
    """A path into a tree, as ``--set`` takes it."""
    steps: list[str] = []
    while isinstance(tree, dict) and tree and (not steps or rng.random() < 0.8):
        key = list(tree)[int(rng.integers(len(tree)))]
        steps.append(key)
        tree = tree[key]
    return ".".join(steps)


def _leaf(tree: Data, rng: np.random.Generator) -> Data:
    while isinstance(tree, dict | list) and tree:
        items = list(tree.values()) if isinstance(tree, dict) else tree
        tree = items[int(rng.integers(len(items)))]
    return tree
