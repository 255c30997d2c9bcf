"""README written by ``onrig init``: from the twin to the first run on hardware, step by step."""

from __future__ import annotations

from string import Template
from typing import Final, NamedTuple


class Bench(NamedTuple):
    """Parts of the README that depend on the plant."""

    plant: str
    firmware: str
    """Value of RIG for ``hw/firmware``."""
    at_rest: str
    """Position in which the sensors read zero, and the effect of moving the rig by hand."""
    by_hand: str
    gentle: str
    """Smallest value for ``sign.py`` that moves the rig; with its unit in ``gentle_words``."""
    gentle_words: str
    pushed: str
    """Effect of the gentle value if the sign is right."""
    reversed: str
    """Effect if the sign is wrong, and the remedy."""
    tenth: str
    """Settings for a tenth of the effort."""
    tenth_why: str
    behind: str
    """``limits.predicted.sensor_error`` of the shipped firmware, whose velocity is delayed."""


BENCHES: Final = {
    "pendulum": Bench(
        "pendulum",
        "pendulum-hw",
        "The arm hangs still: angle 0, velocity 0.",
        "Turned by hand the positive way, angle and velocity are positive; a full turn comes back to the same angle.",
        "0.5",
        "half a volt",
        "the velocity turns positive in the first lines",
        "It turns negative: swap the motor's leads (or the encoder's A and B, if by hand the angle counted backwards).",
        "--set 'limits.range={voltage: [-0.3, 0.3]}' --set limits.predicted=null "
        "--set 'limits.envelope={velocity: {low: -5, high: 5}}' --set task.episode_s=2",
        "`limits.predicted` is null here because it assumes the full braking voltage; the envelope on the measured "
        "velocity and the fallback stay.",
        "{velocity: 1.6}",
    ),
    "magman": Bench(
        "magnetic manipulator",
        "magman",
        "The ball lies over the first edge of the track: position 0, velocity 0.",
        "Pushed by hand towards the last coil, position and velocity are positive, in metres along a scale beside it.",
        "0.06",
        "a tenth of the first coil's squared current",
        "the ball moves towards the first coil, at 0.025 m",
        "It moves to another coil: the drivers are connected in another order. `sign.py` drives the first actuator "
        "alone: set its index to try the others.",
        "--set 'limits.range={current_1: [0, 0.06], current_2: [0, 0.06], current_3: [0, 0.06], current_4: [0, 0.06]}' "
        "--set 'limits.envelope={velocity: {low: -0.3, high: 0.3}}' --set task.episode_s=2",
        "The ball may not move at all with so little current: that is the point of the first try.",
        "{velocity: 0.085}",
    ),
}
_PAGE: Final = Template("""\
# $name

A $plant for Onrig. `rig.yaml` describes what is bolted to the bench, `task.yaml` what it is to do, `run.yaml` how it
learns that and within which limits. Commands are typed in this folder.

## On its twin

```sh
onrig check run.yaml --explain
onrig run run.yaml --set episodes=20
```

`check` prints `sound` and tables of limits and schedules; problems come as `FILE:LINE:COL: message`. The run takes
virtual time, so 20 episodes are over in seconds; all 500 of `run.yaml` are enough to learn the task.

## On the bench

Before the first step: the names, units, resolutions and limits in `rig.yaml` are those of your firmware (the run
compares them and refuses any difference; the shipped firmware for a Raspberry Pi Pico takes the name with
`make -C hw/firmware flash RIG=$firmware NAME=$name`), the e-stop cuts the power without any software, the mechanics
are free to move, nobody is within reach. PORT stands for your port; `onrig ports` lists them. Go on to a step only
when the one before is right.

### 1. Doctor, supply off

```sh
onrig ports
onrig doctor run.yaml --set device.pace=realtime --device PORT
```

*Right:* no FAIL; the port has a name under `/dev/serial/by-id` and nobody holds it.

*Wrong:* a FAIL, with its remedy in the line below: no permission (join the port's group, log in again), open in another
program (end it), a latency of 16 ms (the udev rule of `onrig service`).

### 2. Dry run, supply off

```sh
onrig run run.yaml --set device.pace=realtime --device PORT --dry-run
```

*Right:* `sound; would run ...`. Nothing was sent to the device.

*Wrong:* exit code 2 and the place in the file, or exit code 4 and the ports that there are.

### 3. Sign, supply current-limited, a hand on the e-stop

`sign.py` is the program in Onrig's `docs/wiring.md`. It arms the device for half a second with one value, to which it
first limits the device itself.

```sh
python sign.py run.yaml PORT 0
python sign.py run.yaml PORT $gentle
```

*Right, with 0 and the supply still off:* $at_rest $by_hand

*Right, with 0 and the e-stop pressed:* `the device refused CLEAR_FAULT` because of ESTOP; released, it runs again.
Otherwise stop here: its contact or the firmware is wrong.

*Right, with $gentle ($gentle_words):* $pushed.

*Wrong:* $reversed
With the wrong sign the fallback accelerates instead of braking: never go on with it. Nothing moves: the supply is off,
the e-stop is pressed, or the value is below friction and dead band (raise it a little). `no frame, or a fault`: the
number is the device's fault code (`hw/PROTOCOL.md`, section 2.4).

### 4. Identify

```sh
onrig identify run.yaml --set device.pace=realtime --device PORT --effort 0.3 --out identified
onrig check run.yaml --set identified=identified/identified.yaml
```

It says what it will do and asks before it moves anything. It needs scipy (`pip install 'onrig[identify]'`).

*Right:* intervals of a few percent, and measured and predicted curves on top of each other in
`identified/identification.html`; `check` still says `sound`.

*Wrong:* `reversed` and exit code 3: back to step 3. Wide intervals, or parameters under `Not identifiable`: more
`--effort`. A fault: clear its cause and start again.

### 5. A tenth of the effort

```sh
onrig run run.yaml --set device.pace=realtime --device PORT --set episodes=5 $tenth
```

$tenth_why

*Right:* it ends with `actuators: safe: shown by a state frame from the device` and few missed ticks. Then, in further
runs: after the e-stop it stands disarmed until `onrig resume`, and so it does after the cable was pulled and plugged in
again; `onrig stop` fades out.

*Wrong:* `no command reached the device during a complete lease`: the host is too slow, see `docs/real-time.md`. A reset
that fails: give `reset` in `task.yaml` more time or effort. Interventions in every tick: an envelope too narrow, or
step 3.

### 6. Full

```sh
onrig run run.yaml --set device.pace=realtime --device PORT --set identified=identified/identified.yaml --web
```

Before it, write `sensor_error: $behind` under `limits.predicted` in `run.yaml` if the firmware is the one for the
Pico: its velocity is the slope of the last milliseconds, off from the true one by up to that much, and the promise of
the shield depends on it. Widen one limit at a time until `run.yaml` holds as it stands, then write port, pace and
`identified:` into it.

*Right:* the learning curve rises over some hundred episodes, interventions fade, and `onrig replay RUN` finds every
decision equal.

*Wrong:* the return stays low: `onrig report RUN` shows exploration, interventions and timing of each episode. A fault
leaves a post-mortem of its last two seconds in the run folder.

When a run is gone and the device may still be armed: `onrig disarm PORT`.
""")


def page(bench: Bench, name: str) -> str:
    """Text of the README of a rig called ``name``."""
    return _PAGE.substitute(bench._asdict(), name=name)
