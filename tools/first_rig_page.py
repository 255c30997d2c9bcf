"""README written by ``onrig init``: what the template says of its twin, then the steps to the bench.

``bench.yaml`` of a template holds the words that depend on its plant.
"""

from __future__ import annotations

import re
from string import Template
from typing import Final

import msgspec

from onrig.runtime.safety.promise import Promise

_FIRMWARE: Final = (
    "the shipped firmware for a Raspberry Pi Pico takes the name with\n"
    "`make -C hw/firmware flash RIG=$firmware NAME=$name`"
)
_NO_FIRMWARE: Final = (
    "none ships for this plant: implement `hw/PROTOCOL.md` on a\n"
    "microcontroller, or let a driver in Python talk to your motor controller, as `docs/devices.md` shows"
)
_BEHIND: Final = """\
Before it, write `sensor_error: $behind` under `limits.predicted` in `run.yaml` if the firmware is the one for the
Pico: its velocity is the slope of the last milliseconds, off from the true one by up to that much, and the promise of
the shield depends on it. """


class Bench(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parts of the README that depend on the plant."""

    run: str = ""
    """Shipped run whose rig, task and run the template takes, in place of files of its own."""
    firmware: str = ""
    """Value of RIG for ``hw/firmware``, if a firmware ships."""
    at_rest: str = "The rig is at rest: every sensor reads what `task.yaml` has under `start`."
    """Position in which the sensors read zero."""
    by_hand: str = "Moved by hand the positive way, positions rise and velocities are positive."
    """Effect of moving the rig by hand."""
    gentle: str
    """Smallest value for ``sign.py`` that moves the rig; with its unit in ``gentle_words``."""
    gentle_words: str
    pushed: str = "what it drives moves the positive way"
    """Effect of the gentle value if the sign is right."""
    reversed: str = (
        "It moves the other way: swap the motor's leads (or reverse the sensor, if by hand it counted backwards)."
    )
    """Effect if the sign is wrong, and the remedy."""
    tenth: str
    """Settings for a tenth of the effort."""
    tenth_why: str = "It may not move at all with so little effort: that is the point of the first try."
    behind: str = ""
    """``limits.predicted.sensor_error`` of the shipped firmware, whose velocity is delayed."""


_PAGE: Final = Template("""\

## On the bench

Before the first step: the names, units, resolutions and limits in `rig.yaml` are those of your firmware (the run
compares them and refuses any difference; $source), the e-stop cuts the power without any software, the mechanics
are free to move, nobody is within reach.

What the shield promises for this rig is, in one word, **$word**: $promise. `check`, the page and
reports show the same word; Onrig's `runtime/SAFETY.md` states what each assumes.

PORT stands for your port; `onrig ports` lists them. Go on to a step only
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

${behind}Widen one limit at a time until `run.yaml` holds as it stands, then write port, pace and `identified:` into it.

*Right:* the learning curve rises over some hundred episodes, interventions fade, and `onrig replay RUN` finds every
decision equal.

*Wrong:* the return stays low: `onrig report RUN` shows exploration, interventions and timing of each episode. A fault
leaves a post-mortem of its last two seconds in the run folder.

When a run is gone and the device may still be armed: `onrig disarm PORT`.
""")


def page(about: str, bench: Bench, name: str, promise: Promise) -> str:
    """Text of the README of a rig called ``name``: the template's own under this title, then the bench."""
    source = Template(_FIRMWARE if bench.firmware else _NO_FIRMWARE).substitute(firmware=bench.firmware, name=name)
    behind = Template(_BEHIND).substitute(behind=bench.behind) if bench.behind else ""
    titled = re.sub(r"\A# .*$", f"# {name}", about.rstrip("\n"), flags=re.MULTILINE)
    words = {"source": source, "behind": behind, "word": promise.word, "promise": promise.sentence}
    return f"{titled}\n" + _PAGE.substitute({**msgspec.to_builtins(bench), **words})
