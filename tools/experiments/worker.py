"""A process that does jobs: ``python -m onrig.tools.experiments.worker ENGINE``.

Jobs come in on stdin as lines of JSON, replies go out on stdout; it ends when stdin does.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback

import msgspec

from onrig.runtime.control.realtime import die_with_parent
from onrig.tools.experiments.jobs import Failed, Finished, Job, Progress, Ready, Reply, do, engine_named


def main(module: str) -> None:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the driver sees to the end
    die_with_parent()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the replies

    def reply(message: Reply) -> None:
        replies.write(msgspec.json.encode(message) + b"\n")
        replies.flush()

    engine = engine_named(module)
    decoder = msgspec.json.Decoder(Job)
    reply(Ready())
    for line in sys.stdin.buffer:
        answer: Finished | Failed
        try:
            answer = do(decoder.decode(line), engine, lambda episodes: reply(Progress(episodes)))
        except BrokenPipeError:
            return
        except Exception as error:
            traceback.print_exc()
            answer = Failed(f"{type(error).__name__}: {error}")
        reply(answer)


if __name__ == "__main__":
    main(sys.argv[1])
