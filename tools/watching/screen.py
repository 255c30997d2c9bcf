"""The screen of ``onrig watch``: panels of text, from 80 x 24 characters up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.text import Text

from onrig.runtime.printable import printable
from onrig.runtime.run_state.states import State
from onrig.tools.watching import words
from onrig.tools.watching.rig_text import Sketch, rig_rows
from onrig.tools.watching.snapshot import Happened, Snapshot

_COLOURS: Final = {
    State.RUNNING: "green",
    State.FALLBACK: "yellow",
    State.FADING: "yellow",
    State.RESETTING: "cyan",
    State.PAUSED: "yellow",
    State.FAULT: "red",
}
KEYS: Final = "q leaves (the run goes on)   s stops the run"
_TOP, _MIDDLE, _LEAST_EVENTS = 9, 7, 4
_BORDERS: Final = 2


def screen(s: Snapshot, sketch: Sketch, footer: str, width: int, height: int, *, fancy: bool = True) -> RenderableType:
    """Lay the snapshot out on ``width`` x ``height`` characters; what does not fit is cut off."""
    spare = max(0, height - 2 - _MIDDLE - _TOP - _LEAST_EVENTS - _BORDERS)
    top = _TOP + spare // 2
    layout = Layout()
    layout.split_column(
        Layout(_head(s), size=1),
        Layout(name="top", size=top),
        Layout(name="middle", size=_MIDDLE),
        Layout(name="events"),
        Layout(Text(footer, style="reverse"), size=1),
    )
    left = width // 2
    inside = (left - 4, width - left - 4)
    layout["top"].split_row(
        Layout(_panel("rig", rig_rows(s.config.rig, sketch, s.now, inside[0], top - _BORDERS, fancy=fancy)), size=left),
        Layout(_panel("learning", words.learning(s, inside[1], fancy=fancy))),
    )
    layout["middle"].split_row(
        Layout(_panel("timing (logarithmic)", words.timing(s, inside[0], fancy=fancy)), size=left),
        Layout(_panel("safety", words.safety(s))),
    )
    events = max(1, height - 2 - top - _MIDDLE - _BORDERS)
    layout["events"].update(Panel(_events(s.events[-events:]), title="events", title_align="left", border_style="dim"))
    return layout


def _head(s: Snapshot) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f" {s.state.name} ", style=f"bold reverse {_COLOURS.get(s.state, 'white')}")
    text.append(f" {words.headline(s)}")
    text.append(printable(f"  {s.folder.name}"), style="dim")
    return text


def _panel(title: str, rows: Sequence[str]) -> Panel:
    lines = [Text(printable(row), no_wrap=True, overflow="ellipsis") for row in rows]
    return Panel(Group(*lines), title=title, title_align="left", border_style="dim")


def _events(events: Sequence[Happened]) -> RenderableType:
    if not events:
        return Text("none yet", style="dim")
    lines = []
    for event in events:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{event.clock} ", style="dim")
        line.append(printable(event.text), style="red" if event.alarming else "")
        lines.append(line)
    return Group(*lines)
