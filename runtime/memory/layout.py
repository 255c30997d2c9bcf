"""Row layout of the memory: one transition as 32-bit words.

Row: observation (n_obs) | action (n_act) | next observation (n_obs) | reward | exploration | behaviour | episode | step
| meta word.  All are float32 except the last three.  Behaviour is present only if the policy is stochastic: mean,
standard deviation and the action drawn from them (n_act each), normalised, before any clipping.

Exploration is float32 because it is a retention key, and float16 would cause ties.  The meta word holds

* bits 0-4: flags (:class:`Flag`);
* bits 5-15: generation of the slot, incremented by every write, modulo 2048 (1 after the first write);
* bits 16-31: policy id modulo 65536.

Wrap-around: a late TD error is applied to the wrong experience only if its slot was rewritten an exact multiple of 2048
times in between, which is too rare to justify a second meta word.  A stored policy id refers to the nearest matching id
in use; the log contains the full id.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Slots = NDArray[np.int64]

GENERATION_SHIFT: Final = 5
GENERATION_MASK: Final = 0x7FF
POLICY_SHIFT: Final = 16
POLICY_MASK: Final = 0xFFFF
FLAG_MASK: Final = 0x1F


class Flag(enum.IntFlag):
    """Properties of a transition."""

    TERMINATED = 1
    """The next observation is terminal: no bootstrap.  A time limit is not a termination."""
    TRUNCATED = 2
    """Last transition of an episode that was cut off."""
    INTERVENED = 4
    """A rule of the shield changed the action."""
    SYNTHETIC = 8
    """Recomputed with the plant's model (de Bruin et al. 2018, §6.2.1), not measured."""
    DEVIATES = 16
    """The applied action differs from the one that the policy chose with its full noise: the shield acted, the command
    was late, or the policy's own noise was reduced."""


_TERMINATED: Final = np.uint32(Flag.TERMINATED)
_INTERVENED: Final = np.uint32(Flag.INTERVENED)


class Layout(msgspec.Struct, frozen=True):
    """Positions of the fields in a row of ``width`` 32-bit words."""

    n_obs: int
    n_act: int
    behaviour: bool = False
    """Whether rows hold the distribution and the draw of a stochastic policy."""

    @property
    def width(self) -> int:
        """Words per row."""
        return self.meta + 1

    @property
    def row_bytes(self) -> int:
        """Bytes per transition."""
        return 4 * self.width

    @property
    def n_behaviour(self) -> int:
        """Words of the behaviour (mean, standard deviation and draw for each action); 0 without one."""
        return 3 * self.n_act * self.behaviour

    @property
    def observation(self) -> slice:
        """Columns of the observation."""
        return slice(0, self.n_obs)

    @property
    def action(self) -> slice:
        """Columns of the applied action."""
        return slice(self.n_obs, self.n_obs + self.n_act)

    @property
    def next_observation(self) -> slice:
        """Columns of the next observation."""
        return slice(self.n_obs + self.n_act, 2 * self.n_obs + self.n_act)

    @property
    def reward(self) -> int:
        """Column of the reward."""
        return 2 * self.n_obs + self.n_act

    @property
    def exploration(self) -> int:
        """Column of the exploration magnitude."""
        return self.reward + 1

    @property
    def behaviour_columns(self) -> slice:
        """Columns of mean, standard deviation and draw, in this order."""
        return slice(self.exploration + 1, self.episode)

    @property
    def episode(self) -> int:
        """Column of the training episode."""
        return self.exploration + 1 + self.n_behaviour

    @property
    def step(self) -> int:
        """Column of the transition's number within its episode."""
        return self.episode + 1

    @property
    def meta(self) -> int:
        """Column of the meta word."""
        return self.episode + 2


class Rows:
    """Transitions in rows of ``words`` (size, width), with one view per field.

    ``observation``, ``next_observation``: (size, n_obs) float32; ``action``: (size, n_act) float32; ``behaviour``:
    (size, n_behaviour) float32; ``reward``, ``exploration``: (size,) float32; ``episode``, ``step``, ``meta``: (size,)
    uint32.
    """

    def __init__(self, layout: Layout, words: Words) -> None:
        self.layout: Final = layout
        self.words: Final = words
        floats: Floats = words.view(np.float32)
        self.observation: Final[Floats] = floats[:, layout.observation]
        self.action: Final[Floats] = floats[:, layout.action]
        self.next_observation: Final[Floats] = floats[:, layout.next_observation]
        self.reward: Final[Floats] = floats[:, layout.reward]
        self.exploration: Final[Floats] = floats[:, layout.exploration]
        self.behaviour: Final[Floats] = floats[:, layout.behaviour_columns]
        self.episode: Final[Words] = words[:, layout.episode]
        self.step: Final[Words] = words[:, layout.step]
        self.meta: Final[Words] = words[:, layout.meta]


class Batch(Rows):
    """Buffer for ``size`` transitions, which :meth:`Storage.gather` fills without intermediate copies; the next call
    overwrites it."""

    def __init__(self, layout: Layout, size: int) -> None:
        super().__init__(layout, np.zeros((size, layout.width), np.uint32))

    def terminated(self) -> NDArray[np.bool_]:
        """Return a mask (size,) of the transitions that end in a terminal state."""
        terminated: NDArray[np.bool_] = (self.meta & _TERMINATED).astype(np.bool_)
        return terminated

    def intervened(self) -> NDArray[np.bool_]:
        """Return a mask (size,) of the transitions in which the shield acted."""
        intervened: NDArray[np.bool_] = (self.meta & _INTERVENED).astype(np.bool_)
        return intervened

    def generation(self) -> Words:
        """Return the generation (size,) that each slot had when it was gathered, to send back with the TD error."""
        return (self.meta >> np.uint32(GENERATION_SHIFT)) & np.uint32(GENERATION_MASK)
