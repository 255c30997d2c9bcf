"""README written by ``onrig init``: the template's text about the twin, then the steps on the bench.

The template's ``bench.yaml`` contains the texts that depend on the plant.
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
    "no firmware ships for this plant: implement `hw/PROTOCOL.md` on a\n"
    "microcontroller, or write a driver in Python for your motor controller, as `docs/devices.md` shows"
)
_VELOCITY_DELAY_STEP: Final = """\
If the firmware is the one for the Pico, first write `sensor_error: $behind` under `limits.predicted` in `run.yaml`: its
velocity is the slope of the position over the last few milliseconds, which deviates from the true velocity by up to
this value, and the promise of the shield depends on it. """


class Bench(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parts of the README that depend on the plant."""

    run: str = ""
    """Shipped run from which the template takes its run, rig and task files."""
    firmware: str = ""
    """Value of RIG for ``hw/firmware``, if that folder contains firmware for this rig."""
    at_rest: str = "The rig is at rest: every sensor shows the value under `start` in `task.yaml`."
    """Position in which the sensors read zero."""
    by_hand: str = "When you move it by hand in the positive direction, positions rise and velocities are positive."
    """Effect of moving the rig by hand."""
    gentle: str
    """Smallest value for ``sign.py`` that moves the rig; ``gentle_words`` describes it with its unit."""
    gentle_words: str
    pushed: str = "the driven part moves in the positive direction"
    """Effect of the gentle value if the sign is right."""
    reversed: str = (
        "It moves in the opposite direction: swap the motor's leads (or reverse the sensor, if it counted backwards\n"
        "when you moved the rig by hand)."
    )
    """Effect if the sign is wrong, and the remedy."""
    tenth: str
    """Settings for a tenth of the effort."""
    tenth_why: str = "With so little effort the rig may not move at all; this is only a first test."
    behind: str = ""
    """Value of ``limits.predicted.sensor_error`` for the shipped firmware, whose velocity is delayed."""


_PAGE: Final = Template("""\

## On the bench

Before the first step: the names, units, resolutions and limits in `rig.yaml` are those of your firmware (the run
compares them and refuses to start if they differ; $source), the e-stop cuts the power without any software, the
mechanics are free to move, and no one is within reach.

The shield's promise for this rig is **$word**: $promise. `check`, the page and
reports show the same word; Onrig's `runtime/SAFETY.md` states what each word assumes.

Replace PORT with your port (`onrig ports` lists them). Start each step only if the previous one succeeded.

### 1. Doctor, supply off

```sh
onrig ports
onrig doctor run.yaml --set device.pace=realtime --device PORT
```

*Right:* no FAIL; the port has a name under `/dev/serial/by-id`, and no other program has it open.

*Wrong:* a FAIL, with its remedy in the line below: no permission (join the port's group, log in again), the port open
in another program (end it), a latency of 16 ms (install the udev rule of `onrig service`).

### 2. Dry run, supply off

```sh
onrig run run.yaml --set device.pace=realtime --device PORT --dry-run
```

*Right:* `valid; would run ...`. Nothing was sent to the device.

*Wrong:* exit code 2 and the location in the file, or exit code 4 and the available ports.

### 3. Sign, supply current-limited, a hand on the e-stop

`sign.py` is the program in Onrig's `docs/wiring.md`. It limits the device to the given value, then drives it with that
value for half a second.

```sh
python sign.py run.yaml PORT 0
python sign.py run.yaml PORT $gentle
```

*Right, with 0 and the supply still off:* $at_rest $by_hand

*Right, with 0 and the e-stop pressed:* `the device refused CLEAR_FAULT` because of ESTOP; once the e-stop is released,
the program runs again. Otherwise stop here: the e-stop wiring or the firmware is faulty.

*Right, with $gentle ($gentle_words):* $pushed.

*Wrong:* $reversed
With the wrong sign the fallback accelerates instead of braking: never continue like this. If nothing moves, the supply
is off, the e-stop is pressed, or the value does not overcome friction and dead band (raise it a little). `no frame, or
a fault`: the number is the device's fault code (`hw/PROTOCOL.md`, section 2.4).

### 4. Identify

```sh
onrig identify run.yaml --set device.pace=realtime --device PORT --effort 0.3 --out identified
onrig check run.yaml --set identified=identified/identified.yaml
```

`identify` announces the motion and asks for confirmation first. It needs scipy (`pip install 'onrig[identify]'`).

*Right:* intervals of a few percent, and measured and predicted curves that coincide in
`identified/identification.html`; `check` still prints `valid`.

*Wrong:* `reversed` and exit code 3: return to step 3. Wide intervals, or parameters under `Not identifiable`: raise
`--effort`. A fault: remove its cause and repeat the step.

### 5. A tenth of the effort

```sh
onrig run run.yaml --set device.pace=realtime --device PORT --set episodes=5 $tenth
```

$tenth_why

*Right:* the run ends with `actuators: safe: shown by a state frame from the device` and few missed ticks. Then, in
further runs, test these: after an e-stop, and after the cable has been unplugged and plugged in again, the rig remains
disarmed until `onrig resume`; `onrig stop` fades the commands out.

*Wrong:* `no command reached the device during a complete lease`: the host is too slow, see `docs/real-time.md`. The
reset fails: allow `reset` in `task.yaml` more time or effort. Interventions in every tick: the envelope is too narrow,
or the sign is wrong (step 3).

### 6. Full

```sh
onrig run run.yaml --set device.pace=realtime --device PORT --set identified=identified/identified.yaml --web
```

${behind}Widen one limit at a time up to those of `run.yaml`, then write port, pace and `identified:` into that file.

*Right:* the learning curve rises over a few hundred episodes, interventions become rare, and `onrig replay RUN`
reproduces every decision.

*Wrong:* the return remains low: `onrig report RUN` shows exploration, interventions and timing of each episode. A fault
leaves a post-mortem of the last two seconds before it in the run folder.

If a run has ended and the device may still be armed: `onrig disarm PORT`.
""")


def page(about: str, bench: Bench, name: str, promise: Promise) -> str:
    """Return the README of a rig called ``name``: the template's text under this title, then the bench section."""
    source = Template(_FIRMWARE if bench.firmware else _NO_FIRMWARE).substitute(firmware=bench.firmware, name=name)
    delay_step = Template(_VELOCITY_DELAY_STEP).substitute(behind=bench.behind) if bench.behind else ""
    titled_text = re.sub(r"\A# .*$", f"# {name}", about.rstrip("\n"), flags=re.MULTILINE)
    values = {"source": source, "behind": delay_step, "word": promise.basis, "promise": promise.sentence}
    return f"{titled_text}\n" + _PAGE.substitute({**msgspec.to_builtins(bench), **values})
