"""A device on a pty of this process, for runs that must be refused before anything moves."""

from __future__ import annotations

import threading
from types import TracebackType

from onrig.hw.device.line import Line
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.messages import MessageType, decode_hello, encode_hello
from onrig.runtime.run_config import RunConfig
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.main import twin_options


class PtyDevice:
    """Serves a lockstep twin of ``config`` on ``port`` while the context lasts, with a given hello."""

    def __init__(self, config: RunConfig, *, protocol: int = 1, time_scale: float = 0.0, capabilities: int = 1) -> None:
        self._device = TwinDevice(config.rig, twin_options(config), config.task.start, time_scale=time_scale)
        self._protocol, self._capabilities = protocol, capabilities
        self._line = Line.pty()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.was_armed = False

    @property
    def port(self) -> str:
        """Path of its port."""
        return self._line.path

    def __enter__(self) -> PtyDevice:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._line.close()

    def _serve(self) -> None:
        reader = FrameReader()
        while not self._stop.is_set():
            for body in reader.feed(self._line.read(10_000_000)):
                for answer in self._device.handle(body):
                    if answer[0] == MessageType.HELLO:
                        hello = decode_hello(answer)
                        answer = encode_hello(hello._replace(protocol=self._protocol, capabilities=self._capabilities))
                    self._line.write(encode_frame(answer))
                if self._device.time_scale == 0 and self._device.sample_due:
                    self._line.write(encode_frame(self._device.sample()))
                self.was_armed = self.was_armed or self._device.armed
