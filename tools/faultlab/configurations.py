"""Configurations that somebody, or something, has spoilt, and what must hold of each."""

from __future__ import annotations

import contextlib
import io
import random
import traceback
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from runtime.config.resolve import find, shipped
from runtime.exit_codes import ExitCode
from tools import check

_VALUES: Final = ("1:30", "on", "~", "-1", "0", "1e308", "1.8e308", ".nan", "[]", "{}", "''", "x", "012", "2e9")


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
    rng = random.Random(seed)
    texts = [Path(find(name)).read_text() for name in shipped()]
    for n in count():
        lines = rng.choice(texts).splitlines()
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(lines))
            lines[at] = f"{lines[at].partition(':')[0]}: {rng.choice(_VALUES)}"
        yield Mutant(f"{seed}-{n}", "\n".join(lines).encode())


def judge(mutant: Mutant, folder: Path) -> Finding | None:
    """Check a mutant in this process; None where all is as it must be."""
    path = folder / "mutant.yaml"
    path.write_bytes(mutant.content)
    err = io.StringIO()
    try:
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(err):
            code = check.main([str(path), *(f"--set={o}" for o in mutant.overrides)])
    except (Exception, SystemExit) as error:
        return Finding(mutant, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    if code not in (ExitCode.OK, ExitCode.CONFIGURATION):
        return Finding(mutant, f"exit code {code}: {err.getvalue()[:500]}")
    return None if code == ExitCode.OK or err.getvalue() else Finding(mutant, "refused without a word")
