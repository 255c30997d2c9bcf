"""A device under test and the host's side of the wire, without a line or a clock."""

from __future__ import annotations

from onrig.hw import messages as m
from onrig.hw.messages import Op, Response, Result, State
from onrig.hw.rig import Actuator, Observation, Rig, Sensor
from onrig.sim.plants import Pendulum
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions

PERIOD_US = 20_000
RESOLUTION = 3.834951969714103e-4

RIG = Rig(
    name="pendulum",
    sensors=(
        Sensor(name="angle", unit="rad", resolution=RESOLUTION, wrap=True),
        Sensor(name="velocity", unit="rad/s", resolution=1e-3),
    ),
    actuators=(Actuator(name="voltage", unit="V", resolution=1e-4, low=-3.0, high=3.0, safe=0.0),),
    observations=(
        Observation(name="angle", unit="rad", low=-3.141592653589793, high=3.141592653589793),
        Observation(name="velocity", unit="rad/s", low=-30.0, high=30.0),
    ),
)
AT_REST = {"angle": 0.0, "velocity": 0.0}


class Bench:
    """Communicates with one twin; ``device`` can be inspected."""

    def __init__(
        self,
        options: TwinOptions | None = None,
        *,
        rig: Rig = RIG,
        start: dict[str, float] | None = None,
        time_scale: float = 1.0,
    ) -> None:
        options = options or TwinOptions(plant=Pendulum())
        self.device = TwinDevice(rig, options, start or AT_REST, time_scale=time_scale)
        self.layout = m.StateLayout(len(rig.sensors), len(rig.actuators))
        self.commands = m.CommandLayout(len(rig.actuators))
        self.id = 0

    def request(self, op: int, payload: bytes = b"", *, offset_us: int = 0) -> Response:
        self.id += 1
        (reply,) = self.device.handle(m.encode_request(m.Request(self.id, op, payload)), offset_us)
        response = m.decode_response(reply)
        assert (response.id, response.op) == (self.id, op)
        return response

    def configure(self, period_us: int = PERIOD_US, lease: int = 3, *, offset_us: int = 0) -> int:
        return self.request(Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(period_us, lease), offset_us=offset_us).result

    def limit(self, low: int, high: int, index: int = 0) -> int:
        return self.request(Op.LIMITS, m.LIMITS_LAYOUT.pack(index, low, high)).result

    def reset(self, seed: int = 0) -> int:
        response = self.request(Op.RESET, m.RESET_LAYOUT.pack(seed))
        assert response.result == Result.OK
        (next_frame,) = m.NEXT_FRAME_LAYOUT.unpack(response.payload)
        return int(next_frame)

    def ready(self, lease: int = 3) -> Bench:
        """Configured and armed, with one sampled frame that a command can answer."""
        assert self.configure(lease=lease) == Result.OK
        assert self.request(Op.ARM).result == Result.OK
        self.sample()
        return self

    def command(self, *counts: int, offset_us: int = 0, answers: int | None = None) -> None:
        body = self.commands.encode(self.device.frame if answers is None else answers, counts)
        assert self.device.handle(body, offset_us) == []

    def sample(self) -> State:
        return self.layout.decode(self.device.sample())
