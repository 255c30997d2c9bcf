"""An emulated camera: ``python images.py ROWS COLUMNS RATE_HZ`` writes grey images in which a bar moves."""

from __future__ import annotations

import itertools
import sys
import time


def main() -> None:
    """Write images until the reader is gone."""
    rows, columns, rate_hz = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    start_s = time.monotonic()
    for n in itertools.count():
        time.sleep(max(start_s + n / rate_hz - time.monotonic(), 0.0))
        row = bytes(255 if (column - n) % columns < columns // 8 else 0 for column in range(columns))
        sys.stdout.buffer.write(row * rows)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
