from __future__ import annotations

import pytest

from runtime.control.overrun import attribute_miss
from runtime.record import Miss


@pytest.mark.parametrize(
    ("missed", "busy_until", "overtaken", "cause"),
    [
        (0, 5000, 0, Miss.NONE),
        (1, 500, 0, Miss.LINK),
        (1, 5000, 0, Miss.LINK),
        (1, 1500, 1, Miss.PROGRAM),
        (3, 3900, 3, Miss.PROGRAM),
        (1, 999, 1, Miss.HOST),
    ],
    ids=[
        "nothing missed",
        "the frame never came",
        "it never came, however long we worked",
        "we worked past its arrival",
        "we worked past the arrival of several",
        "we waited for it and were woken late",
    ],
)
def test_a_miss_is_attributed(missed: int, busy_until: int, overtaken: int, cause: Miss) -> None:
    assert attribute_miss(missed, 1000, busy_until, overtaken) == cause
