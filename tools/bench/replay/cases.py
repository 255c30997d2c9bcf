"""Cases of ``onrig bench replay``, with their equivalents in the other libraries."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Operation(enum.Enum):
    """Timed operation."""

    INSERT = "insert"
    INSERT_DRAWABLE = "insert drawable"
    """Insertion including the sampler's notification, after which the transition can be drawn."""
    SAMPLE = "sample"
    UPDATE = "update"
    CYCLE = "cycle"


class Case(msgspec.Struct, frozen=True):
    """Measurement that is made for each library that supports it."""

    name: str
    operation: Operation
    onrig: str
    """Onrig's strategy."""
    peer: str | None
    """Kind of memory in the other libraries; None if they have no equivalent."""
    size: int = 0
    """Transitions per sample."""
    after_update: bool = False
    """Whether an untimed update precedes each call."""
    compared_with: str | None = None
    """Case from which the peers' times are shown if this case has no peer."""

    def kind(self, package: str) -> str | None:
        """Return the memory that ``package`` uses."""
        return self.onrig if package == "onrig" else self.peer


def _uniform_cases() -> tuple[Case, ...]:
    fifo = "FIFO[Uniform]"
    return (
        Case("insert FIFO", Operation.INSERT, fifo, "Uniform"),
        Case("insert FULL", Operation.INSERT, "FULL[Uniform]", None, compared_with="insert FIFO"),
        Case("insert Resv", Operation.INSERT, "Resv[Uniform]", None, compared_with="insert FIFO"),
        Case("insert MinError", Operation.INSERT, "MinError[Uniform]", None, compared_with="insert FIFO"),
        *(Case(f"sample {n} Uniform", Operation.SAMPLE, fifo, "Uniform", n) for n in SIZES),
        Case("cycle FIFO[Uniform]", Operation.CYCLE, fifo, "Uniform"),
    )


def _prioritised_cases() -> tuple[Case, ...]:
    rank, proportional, tde, expl = "FIFO[PER]", "FIFO[PropPER+IS]", "TDE(1.0)[PER]", "Expl(1.0)[PER]"
    per = [
        Case("insert PropPER", Operation.INSERT_DRAWABLE, proportional, "PER"),
        Case("insert PER", Operation.INSERT_DRAWABLE, rank, None, compared_with="insert PropPER"),
        Case("insert TDE(1.0)", Operation.INSERT, tde, None, compared_with="insert PropPER"),
        Case("insert Expl(1.0)", Operation.INSERT, expl, None, compared_with="insert PropPER"),
    ]
    for n in SIZES:
        peer_case = f"sample {n} PropPER"
        per.append(Case(peer_case, Operation.SAMPLE, proportional, "PER", n, after_update=True))
        per.append(Case(f"sample {n} PER", Operation.SAMPLE, rank, None, n, after_update=True, compared_with=peer_case))
    return (
        *per,
        Case("update 16 PropPER", Operation.UPDATE, proportional, "PER"),
        Case("update 16 PER", Operation.UPDATE, rank, None, compared_with="update 16 PropPER"),
        Case("update 16 TDE(1.0)", Operation.UPDATE, tde, None, compared_with="update 16 PropPER"),
        Case("cycle FIFO[PropPER+IS]", Operation.CYCLE, proportional, "PER"),
        Case("cycle FIFO[PER]", Operation.CYCLE, rank, None, compared_with="cycle FIFO[PropPER+IS]"),
        Case("cycle TDE(1.0)[PER]", Operation.CYCLE, tde, None, compared_with="cycle FIFO[PropPER+IS]"),
        Case("cycle Expl(1.0)[PER]", Operation.CYCLE, expl, None, compared_with="cycle FIFO[PropPER+IS]"),
    )


SIZES: Final = (16, 64, 256)
GROUPS: Final = (_uniform_cases(), _prioritised_cases())
"""Groups of cases; the memories of a group exist at the same time."""
CASES: Final = tuple(case for group in GROUPS for case in group)


class Memory(msgspec.Struct, frozen=True):
    """Memory whose sampling is tested or whose size is measured."""

    onrig: str
    peer: str | None

    @property
    def name(self) -> str:
        """Name in the report."""
        return f"memory {self.onrig}"

    def kind(self, package: str) -> str | None:
        """Return the memory that ``package`` uses."""
        return self.onrig if package == "onrig" else self.peer


DRAW_TESTED_MEMORIES: Final = (
    Memory("FIFO[Uniform]", "Uniform"),
    Memory("FIFO[PER]", None),
    Memory("FIFO[PropPER+IS]", "PER"),
)
"""Memories whose draws are tested before any timing."""
MEMORIES: Final = (
    Memory("FIFO[Uniform]", "Uniform"),
    Memory("Resv[Uniform]", None),
    Memory("TDE(1.0)[Uniform]", None),
    Memory("Expl(1.0)[Uniform]", None),
    Memory("MinError[Uniform]", None),
    Memory("FIFO[PER]", None),
    Memory("FIFO[PropPER+IS]", "PER"),
)
"""Memories whose size is measured."""


class Shape(msgspec.Struct, frozen=True):
    """Sizes of observation and action."""

    n_obs: int
    n_act: int

    def __str__(self) -> str:
        return f"{self.n_obs}/{self.n_act}"

    @property
    def raw_bytes(self) -> int:
        """Bytes of the float32 fields: observation, action, reward, next observation."""
        return 4 * (2 * self.n_obs + self.n_act + 1)


SHAPES: Final = (Shape(2, 1), Shape(17, 6))
"""Shapes of the pendulum and of a common simulated robot."""


def case_title(name: str, shape: Shape, capacity: int) -> str:
    """Return the name of a case in the report."""
    return f"{name}, {shape}, {capacity}"
