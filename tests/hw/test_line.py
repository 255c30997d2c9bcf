from __future__ import annotations

import os

from onrig.hw.line import Serial
from onrig.hw.transport import DEFAULT_BAUD_RATE


def test_a_serial_line_opens_the_port_found_by_the_run() -> None:
    controller, device = os.openpty()
    line = Serial("/dev/ttyNONE").with_address(os.ttyname(device))
    assert (line.address, line.baud) == (os.ttyname(device), DEFAULT_BAUD_RATE)
    transport = line.open()
    os.write(controller, b"frame")
    assert transport.read(1_000_000_000) == b"frame"
    transport.close()
    os.close(controller)
    os.close(device)


def test_frames_take_ten_bits_per_byte() -> None:
    assert Serial("", 1_000_000).duration_us([20, 30]) == 500.0
