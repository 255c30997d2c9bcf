"""What to make of a frame that was not answered: a pure function over plain numbers.

The overrun policy itself needs no code: the device is the metronome, the newest frame is answered, older ones count as
missed (ARCHITECTURE §2).  Whole periods are skipped onto the device's grid, and nothing is made up for in a burst.
"""

from __future__ import annotations

from onrig.runtime.record import Miss


def attribute_miss(
    missed: int, expected_ns: int, busy_until_ns: int, busy_cpu_ns: int, period_ns: int, overtaken: int
) -> Miss:
    """Say why ``missed`` frames before the present one were not answered.

    expected_ns: when the first missed frame should have arrived; busy_until_ns: when our own work before it ended;
    busy_cpu_ns: processor time we had since the frame before; overtaken: how many of the missed frames did arrive, but
    lay unread until a newer one came.  To overtake a frame by itself, work must have the processor for more than a
    period: it begins with the frame before, or (the rehearsal) just before the frame that it overtakes, and lasts until
    the next one.  Work that had less of it was held up by the machine.
    """
    if missed <= 0:
        return Miss.NONE
    if overtaken == 0:
        return Miss.LINK
    return Miss.PROGRAM if busy_until_ns > expected_ns and busy_cpu_ns > period_ns else Miss.HOST
