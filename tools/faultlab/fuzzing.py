"""Cases that are judged in a process of their own, which may die of them and must not grow.

``python -m onrig.tools.faultlab.fuzzing configurations|models COUNT SEED FOLDER`` prints the outcome as a JSON line.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from onrig.tools.faultlab.campaign import Piece
from onrig.tools.faultlab.gauges import Gauges

_WARM_UP_S: Final = 5.0
_SAMPLE_S: Final = 0.25
_ALLOWED_S: Final = 2.0
"""Time for one case, on average; beyond that the process hangs."""


class Judged(msgspec.Struct):
    """Outcome of the cases."""

    findings: list[str] = []
    counts: dict[str, int] = {}


class Fuzzing:
    """A campaign: each piece judges ``cases`` of ``what`` in a process of its own.

    ``steady``: the process must not grow.  One that judges configurations keeps the tables of the last ones, however
    large; its judge bounds what each of them takes.
    """

    def __init__(
        self, what: str, does: str, seed: int, pieces: int, cases: int, case_s: float, *, steady: bool = True
    ) -> None:
        self.name, self.does, self.pieces = what, f"{pieces * cases} {does}", pieces
        self.piece_s = 3.0 + cases * case_s
        self._seed, self._cases, self._steady = seed, cases, steady

    def run(self, number: int, folder: Path) -> Piece:
        """Judge one piece."""
        seed = 1_000_003 * self._seed + number
        command = [sys.executable, "-m", "onrig.tools.faultlab.fuzzing", self.name, str(self._cases), str(seed)]
        out, err = folder / "judged.json", folder / "child.err"
        gauges = Gauges()
        limit_s = time.monotonic() + 60 + _ALLOWED_S * self._cases
        with out.open("wb") as said, err.open("wb") as complained:
            child = subprocess.Popen([*command, str(folder)], stdin=subprocess.DEVNULL, stdout=said, stderr=complained)
            while child.poll() is None and time.monotonic() < limit_s:
                gauges.sample(time.monotonic(), {"judge": child.pid})
                time.sleep(_SAMPLE_S)
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            code = child.wait()
        complaint = err.read_text(errors="replace")
        judged, found = Judged(), []
        if code == 0:
            judged = msgspec.json.decode(out.read_bytes(), type=Judged)
            found = [f"a traceback on stderr (seed {seed})"] if "Traceback" in complaint else []
        else:
            last = complaint.strip().splitlines()[-1:]
            found = [f"the process that judges ended with {code}: {''.join(last)[:300]} (seed {seed})"]
        grown_mb = gauges.grown_mb(_WARM_UP_S) if self._steady else {}
        return Piece(number, self._cases, [*judged.findings, *found], judged.counts, grown_mb)


def judge_configurations(count: int, seed: int, folder: Path) -> Judged:
    """Judge damaged configurations; those that do what they must not are kept in ``folder``."""
    from onrig.tools.faultlab.configurations import judge, mutants

    judged = Judged(counts={"sound or refused": 0})
    for mutant in islice(mutants(seed), count):
        finding = judge(mutant, folder)
        if finding is None:
            judged.counts["sound or refused"] += 1
            continue
        kept = folder / f"{mutant.name}.yaml"
        kept.write_bytes(mutant.content)
        told = finding.what.strip().splitlines()
        judged.findings.append(f"{kept.name} {' '.join(mutant.overrides)}: {told[0][:300] if told else ''}")
    return judged


def judge_models(count: int, seed: int, folder: Path) -> Judged:
    """Judge mutated models, and let those of sound form act; one that breaks something is found."""
    from onrig.tools.faultlab.models import MUTATIONS, campaign, subject

    judged, verdicts = Judged(), Counter[str]()
    each = -(-count // len(MUTATIONS))
    for mutate in MUTATIONS:
        name = mutate.__name__
        place = folder / name
        place.mkdir()
        outcome = campaign(each, random.Random(f"{seed} {name}").randrange(1 << 30), mutate, place, subject())
        verdicts.update(outcome.verdicts)
        if outcome.unbuilt:
            judged.findings.append(f"{name}: {outcome.unbuilt} were admitted and cannot be run (seed {seed})")
    judged.counts = {"admitted": verdicts["admitted"], "refused": verdicts.total() - verdicts["admitted"]}
    return judged


_JUDGES: Final[dict[str, Callable[[int, int, Path], Judged]]] = {
    "configurations": judge_configurations,
    "models": judge_models,
}


def main(arguments: list[str]) -> int:
    """Judge; returns the exit code."""
    what, count, seed, folder = arguments
    judged = _JUDGES[what](int(count), int(seed), Path(folder))
    sys.stdout.buffer.write(msgspec.json.encode(judged))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
