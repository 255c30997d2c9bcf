from __future__ import annotations

import pytest

from onrig.runtime.control.overrun import attribute_miss
from onrig.runtime.record import Miss


@pytest.mark.parametrize(
    ("missed", "busy_until", "cpu", "overtaken", "cause"),
    [
        (0, 5000, 900, 0, Miss.NONE),
        (1, 500, 100, 0, Miss.LINK),
        (1, 5000, 4900, 0, Miss.LINK),
        (1, 1500, 1400, 1, Miss.PROGRAM),
        (3, 3900, 3800, 3, Miss.PROGRAM),
        (1, 999, 100, 1, Miss.HOST),
        (1, 1500, 100, 1, Miss.HOST),
        (1, 2100, 600, 1, Miss.HOST),
    ],
    ids=[
        "nothing missed",
        "the frame never came",
        "it never came, however long we worked",
        "we worked past its arrival",
        "we worked past the arrival of several",
        "we waited for it and were woken late",
        "our work was held up by the machine",
        "it had more than half a period of the processor, which does not last until the next frame",
    ],
)
def test_a_miss_is_attributed(missed: int, busy_until: int, cpu: int, overtaken: int, cause: Miss) -> None:
    assert attribute_miss(missed, 1000, busy_until, cpu, 1000, overtaken) == cause
