"""Damaged configurations, derived from the shipped ones, and the requirements that hold for any input file.

`mutants` generates them; `judge` finds violations.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from onrig.runtime.config.document import find_config, load_document, shipped_names
from onrig.runtime.config.yaml_nodes import Data
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.tools import check
from onrig.tools.load import load_for_rig
from tests.lab.mutants.rehearsal import rehearse

_PLACED: Final = re.compile(r".+:[1-9]\d*:[1-9]\d*: .+")
_NO_NUMBER: Final = re.compile(r"(?<!\w)(?:nan|inf)(?!\w)")
_MAX_SECONDS: Final = 30.0
"""Maximum processor time for one configuration, including the shield's tables."""
_MAX_GROWTH_BYTES: Final = 1 << 30
_MAX_CHANGES: Final = 3
_INLINE_SHARE: Final = 0.7
_OVERRIDE_SHARE: Final = 0.1
_RAW_SHARE: Final = 0.15
_SCALARS: Final = """
1:30 012 on yes no 0x10 0o17 1_000 +1 .5 5. 1e ~ null true 2026-01-01
1e308 -1e308 1.7976931348623157e308 1.8e308 5e-324 -5e-324 1e-300 1e400 -0.0 0 -1
.inf -.inf .nan NaN nan inf Infinity 1e9 -1e9 1e-18 1e15 4294967296
9223372036854775807 -9223372036854775809 18446744073709551615 99999999999999999999
"""
_TRICKS: Final = (
    *_SCALARS.split(),
    *("9" * 5000, "''", "' '", "[]", "{}", "[[]]", "[1, 2, 3, 4]", "{a: 1}", "*nobody", "&a [*a]", "&a x", "<<: {}"),
    *("? x", "- x", '"\\e[31m"', '"\\a\\b\\0"', '"\\u202e"', '"\\ud800"', '"\\U0010ffff"', '"[/x]"', '"[bold]"'),
    *("'<b>'", "'%s{0}'", "!!python/object/apply:os.system [id]", "!!str 12", "!mine x", "!!binary aGk=", "|\n   text"),
    *("'../../etc/passwd'", "/dev/null", "tcp://*:0", "x" * 300, "é" * 40, "'" + "a/" * 3000 + "'"),
    *("{rig: {rig: {rig: 1}}}", "auto", "lockstep", "FULL[PER]", "TDE(1e308)[PER]", "Expl(0.999999999)[PropPER]"),
    *("'Resv[Uniform]'", "{scaled: 1e3}", "damp", "hold"),
)
"""Values that are difficult for parsers."""
_CHARACTERS: Final = "\x00\x07\x1b\t\r\n\x85\u2028\u202e\u200b\ufeff:-{}[]&*!|>'\"%@`#, ~"
_DEPTH: Final = 40
_GIANT: Final = 30_000
_PARTS: Final = {"rig": "rigs", "task": "tasks"}


class Mutant(NamedTuple):
    """One damaged configuration."""

    name: str
    content: bytes
    overrides: tuple[str, ...] = ()


class Finding(NamedTuple):
    """Violation by a mutant."""

    mutant: Mutant
    violation: str


def mutants(seed: int) -> Iterator[Mutant]:
    """Yield an endless sequence of mutants, determined by the seed."""
    rng = np.random.default_rng(seed)
    bases = [_base(name, inline=inline) for name in shipped_names() for inline in (False, True)]
    for n in count():
        at = 2 * int(rng.integers(len(bases) // 2)) + int(rng.random() < _INLINE_SHARE)
        tree = bases[at]
        overrides: tuple[str, ...] = ()
        for _ in range(1 + int(rng.integers(_MAX_CHANGES))):
            tree = spoil_tree(tree, rng)
        if rng.random() < _OVERRIDE_SHARE:
            overrides = (f"{_path(bases[at], rng)}={emitted(spoil_tree(_leaf(bases[at], rng), rng))}",)
        content = emitted(tree, block=True).encode("utf-8", "surrogatepass")
        if rng.random() < _RAW_SHARE:
            content = spoil_text(content, rng)
        yield Mutant(f"{seed}-{n}", content, overrides)


def judge(mutant: Mutant, folder: Path, *, max_seconds: float = _MAX_SECONDS) -> Finding | None:
    """Check a mutant in this process, like `onrig check --explain`; returns None without violations.

    Requirements: exit code 0 or 2 and no traceback; every problem has a location; only text on the terminal; bounded
    time and memory; and from a valid configuration a run can build everything that it needs, without NaN or infinity.
    """
    path = folder / "mutant.yaml"
    path.write_bytes(mutant.content)
    began, before = time.process_time(), _peak_bytes()
    try:
        violation = _violation(path, mutant.overrides)
    except (Exception, SystemExit) as error:
        violation = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    if violation is None and time.process_time() - began > max_seconds:
        violation = f"took {time.process_time() - began:.1f} s of processor time"
    if violation is None and _peak_bytes() - before > _MAX_GROWTH_BYTES:
        violation = f"took {(_peak_bytes() - before) / 1e6:.0f} MB"
    return None if violation is None else Finding(mutant, violation)


def _violation(path: Path, overrides: tuple[str, ...]) -> str | None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = check.show(str(path), overrides, in_detail=False, plot=None)
    output = out.getvalue() + err.getvalue()
    unclean = next((c for c in output if c != "\n" and not c.isprintable()), None)
    if unclean is not None:
        return f"printed {unclean!r}"
    if code not in (ExitCode.OK, ExitCode.CONFIGURATION):
        return f"exit code {code}: {output[:500]}"
    lines = err.getvalue().splitlines()
    if code and not lines:
        return "refused without a message"
    placeless = [line for line in lines if not _PLACED.fullmatch(line)]
    if placeless:
        return f"a problem without a place: {placeless[0]}"
    if code:
        return None
    given = path.read_text() + "".join(overrides)
    return _unbuildable(load_for_rig(str(path), overrides), permitted=set(_NO_NUMBER.findall(given)))


def _unbuildable(config: RunConfig, permitted: set[str]) -> str | None:
    from onrig.tools.explain import tables

    for table in tables(config):
        for line in str(table).splitlines():
            if not line.replace("°", "").isprintable():
                return f"the explanation holds {line!r}"
            if not set(_NO_NUMBER.findall(line)) <= permitted:  # may be the name of a unit
                return f"the explanation says: {line}"
    return rehearse(config)


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _base(name: str, *, inline: bool) -> Data:
    """Return a shipped configuration; with ``inline``, its rig and task are included."""
    data = load_document(find_config(name)).data
    if inline and isinstance(data, dict):
        parts = {key: load_document(find_config(str(data[key]), folder)).data for key, folder in _PARTS.items()}
        return {**data, **parts}
    return data


def _path(tree: Data, rng: np.random.Generator) -> str:
    """Return a path into a tree, as ``--set`` accepts it."""
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


class Raw(str):
    """A scalar that is written verbatim."""

    __slots__ = ()


class Twice(dict[str, Data]):
    """A mapping whose first key is written twice."""


def spoil_tree(tree: Data, rng: np.random.Generator) -> Data:
    """Return a document with one of its values, keys or structures changed."""
    kinds: tuple[tuple[float, Callable[[Data, Data, np.random.Generator], Data]], ...] = (
        (0.70, _number),
        (0.15, _trick),
        (0.05, _moved_value),
        (0.05, _without_key),
        (0.05, _renamed),
        (0.03, _twice),
        (0.04, _wrapped),
        (0.03, _repeated),
        (0.03, _deep),
        (0.02, _giant),
    )
    weights = np.array([w for w, _ in kinds])
    change = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))][1]
    path = _somewhere(tree, rng, numbers=change is _number)
    return _changed(tree, path, lambda value: change(value, tree, rng))


def spoil_text(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a document's bytes with something inserted, cut off or replaced."""
    at = int(rng.integers(len(content) + 1))
    match int(rng.integers(8)):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + bytes([int(rng.integers(256))]) + content[at:]
        case 2:
            return content.replace(b"\n", b"\r\n")
        case 3:
            return content.replace(b"  ", b"\t", int(rng.integers(4)) + 1)
        case 4:
            return content + b"\n---\n" + content
        case 5:
            return b"%YAML 99999999999999999999.1\n---\n" + content
        case 6:
            laughs = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 'ha'}]\n" for i in range(9))
            return laughs.encode() + content
    return content[:at] + _CHARACTERS[int(rng.integers(len(_CHARACTERS)))].encode() + content[at:]


def emitted(tree: Data, *, block: bool = False) -> str:
    """Write a tree as YAML in flow style; with ``block`` each top-level key on its own line."""
    if isinstance(tree, dict):
        keys = [*tree, *([next(iter(tree))] if isinstance(tree, Twice) and tree else [])]
        pairs = [f"{_scalar(key)}: {emitted(tree[key])}" for key in keys]
        return "\n".join(pairs) + "\n" if block else "{" + ", ".join(pairs) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(emitted(item) for item in tree) + "]"
    return _scalar(tree)


def _scalar(value: Data) -> str:
    return str(value) if isinstance(value, Raw) else json.dumps(value)  # also valid YAML


def _somewhere(tree: Data, rng: np.random.Generator, *, numbers: bool = False) -> tuple[str | int, ...]:
    """Return the path of a random value of a tree; only of ``numbers``, if the tree contains any."""
    paths: list[tuple[str | int, ...]] = []

    def collect(value: Data, at: tuple[str | int, ...]) -> None:
        if len(paths) > 2000:
            return
        if not numbers or (isinstance(value, int | float) and not isinstance(value, bool)):
            paths.append(at)
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for step, child in children:
            collect(child, (*at, step))

    collect(tree, ())
    return paths[int(rng.integers(len(paths)))] if paths else ()


def _changed(tree: Data, path: tuple[str | int, ...], change: Callable[[Data], Data]) -> Data:
    if not path:
        return change(tree)
    step, rest = path[0], path[1:]
    if isinstance(tree, dict):
        return type(tree)({k: _changed(v, rest, change) if k == step else v for k, v in tree.items()})
    if isinstance(tree, list):
        return [_changed(v, rest, change) if i == step else v for i, v in enumerate(tree)]
    return tree


def _number(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    """Change a number's size or sign; replace other values with a difficult one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _trick(value, tree, rng)
    match int(rng.integers(9)):
        case 0:
            return -value
        case 1:
            return value + int(rng.integers(-3, 4))
        case 2:
            return float(value) * float(10.0 ** rng.integers(-30, 31))
        case 3:
            return int(value * 10 ** int(rng.integers(0, 19))) % 2**63
        case 4:
            return float(np.nextafter(value, rng.choice([-np.inf, np.inf])))
    return float(value) * float(rng.uniform(0.3, 3.0))


def _trick(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    return Raw(_TRICKS[int(rng.integers(len(_TRICKS)))])


def _moved_value(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    """Return a value from another position in the document."""
    for step in _somewhere(tree, rng):
        tree = tree[step]  # type: ignore[index]
    return tree


def _without_key(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    if not isinstance(value, dict) or not value:
        return None
    removed = list(value)[int(rng.integers(len(value)))]
    return {k: v for k, v in value.items() if k != removed}


def _renamed(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    if not isinstance(value, dict) or not value:
        return _trick(value, tree, rng)
    old = list(value)[int(rng.integers(len(value)))]
    names = (old[:-1], old + "s", old.upper(), "\u202e" + old, "é", "[/x]", "\x1b[31m", "a b", "", "x" * 2000, "a.b[0]")
    new = names[int(rng.integers(len(names)))]
    return {new if k == old else k: v for k, v in value.items()}


def _twice(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    return Twice(value) if isinstance(value, dict) else [value, value]


def _wrapped(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    return [value] if rng.random() < 0.5 else {"value": value}


def _repeated(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    return value * int(rng.integers(2, 60)) if isinstance(value, list) else value


def _deep(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    for _ in range(int(rng.integers(1, _DEPTH))):
        value = [value]
    return value


def _giant(value: Data, tree: Data, rng: np.random.Generator) -> Data:
    n_items = int(_GIANT ** rng.uniform(0.3, 1.0))  # mostly small: parsing a large one takes seconds
    return [0] * n_items if rng.random() < 0.5 else {f"k{i}": 1 for i in range(n_items)}
