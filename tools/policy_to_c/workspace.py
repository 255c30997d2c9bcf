"""Buffers, constants and statements of a generated C function.

A value is a buffer with an array of indices into it. Operators that only move elements (Reshape, Slice, Transpose, ...)
produce no code, because NumPy applies them to the indices. Buffers with disjoint lifetimes share memory in one array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.runtime.policy.onnx_wire import Array

Index = npt.NDArray[np.intp]

_HELPERS: Final = {
    "dot": """\
#ifdef ONRIG_POLICY_UNFUSED /* for processors without a floating-point unit: faster, but not onnxruntime's rounding */
#define FUSED(a, b, c) ((a) * (b) + (c))
#elif defined __ARM_FEATURE_FMA /* one instruction, with -ffreestanding too */
#define FUSED(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FUSED(a, b, c) fmaf(a, b, c)
#endif

/* total + a . b, in the order and with the rounding of onnxruntime's matrix product. */
static float dot(float total, const float *a, const float *b, int n) {
    for (int start = 0; start < n; start += 256) {
        float sum = 0.0f;
        for (int i = start; i < n && i < start + 256; i++) sum = FUSED(a[i], b[i], sum);
        total += sum;
    }
    return total;
}
""",
    "lesser": "static float lesser(float a, float b) { return a < b || a != a ? a : b; } /* keeps NaN */\n",
    "greater": "static float greater(float a, float b) { return a > b || a != a ? a : b; } /* keeps NaN */\n",
}
"""Helper functions in C, defined only if statements call them."""


class Body(NamedTuple):
    """C source of a function ``(const float *observation, float *action)``."""

    constants: str
    """Definitions before the function: helpers and weights."""
    statements: str
    constant_bytes: int
    work_bytes: int


class View(NamedTuple):
    """Value: elements of a buffer, selected by indices."""

    buffer: str
    elements: Index


class Operand(NamedTuple):
    """C expression for element i of a value, or for a pointer, with the buffer that it reads (empty if none)."""

    text: str
    read: str


class _Step(NamedTuple):
    """Statements that compute one buffer."""

    comment: str
    lines: tuple[str, ...]
    writes: str
    reads: tuple[str, ...]


def literal(value: float) -> str:
    """Return the exact C literal of a float32."""
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


class Workspace:
    """Statements under construction, and the buffers that they use."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        """Contents of constant buffers."""
        self._weights: dict[str, npt.NDArray[np.float32]] = {}
        """Constants in the order in which statements first read them."""
        self._maps: dict[str, Index] = {}
        self._steps: list[_Step] = []
        self._sizes: dict[str, int] = {}

    def constant(self, array: Array) -> View:
        """Add a constant; constants are defined in the order in which statements first read them."""
        buffer = f"constant {len(self._arrays)}"
        self._arrays[buffer] = array.reshape(-1)
        return View(buffer, np.arange(array.size).reshape(array.shape))

    def operand(self, view: View, shape: tuple[int, ...], i: str = "i") -> Operand:
        """Return the expression of element ``i`` of a value that is broadcast to ``shape`` and flattened."""
        index = np.broadcast_to(view.elements, shape).reshape(-1)
        if view.buffer in self._arrays:
            content = self._arrays[view.buffer][index].astype(np.float32)
            if (content == content[0]).all():
                return Operand(literal(float(content[0])), "")
            return Operand(f"{self._weight(content)}[{i}]", "")
        start = int(index[0])
        if (index == start).all():
            at = str(start)
        elif (index == np.arange(start, start + index.size)).all():
            at = f"{start} + {i}" if start else i
        else:
            self._maps[f"m{len(self._maps)}"] = index
            at = f"m{len(self._maps) - 1}[{i}]"
        return Operand(f"{view.buffer}[{at}]", view.buffer)

    def pointer(self, view: View) -> Operand:
        """Return a pointer to the elements of a value in the order of its indices.

        Elements that are not consecutive are copied.
        """
        flat = view.elements.reshape(-1)
        if view.buffer in self._arrays:
            return Operand(self._weight(self._arrays[view.buffer][flat].astype(np.float32)), "")
        start = int(flat[0])
        if not (flat == np.arange(start, start + flat.size)).all():
            operand = self.operand(view, view.elements.shape)
            copied_view = self.loop("copy", flat.shape, operand.text, [operand])
            return Operand(copied_view.buffer, copied_view.buffer)
        return Operand(f"({view.buffer} + {start})" if start else view.buffer, view.buffer)

    def _weight(self, content: npt.NDArray[np.float32]) -> str:
        for name, weights in self._weights.items():
            if weights.tobytes() == content.tobytes():
                return name
        name = f"w{len(self._weights)}"
        self._weights[name] = content
        return name

    def step(self, comment: str, size: int, lines: Callable[[str], Sequence[str]], reads: Iterable[Operand]) -> str:
        """Add statements that compute a new buffer, and return the buffer's name.

        ``lines`` generates the statements for this name.
        """
        buffer = f"h{len(self._sizes)}"
        self._sizes[buffer] = size
        self._steps.append(_Step(comment, tuple(lines(buffer)), buffer, tuple(read.read for read in reads)))
        return buffer

    def loop(self, comment: str, shape: tuple[int, ...], expression: str, reads: Iterable[Operand]) -> View:
        """Compute ``expression``, which depends on i, for each element of a new value."""
        size = math.prod(shape)
        head = f"for (int i = 0; i < {size}; i++)"
        return View(
            self.step(comment, size, lambda out: [f"{head} {out}[i] = {expression};"], reads),
            np.arange(size).reshape(shape),
        )

    def body(self, action: View) -> Body:
        """Assemble the source; the last statement writes ``action``."""
        action_operand = self.operand(action, action.elements.shape)
        offsets, work_size = self._allocate(action_operand.read)
        lines = [f"static float work[{work_size}];"] if work_size else []
        lines += [f"float *const {name} = work + {at};" for name, at in offsets.items()]
        lines += [line for step in self._steps for line in (f"/* {step.comment} */", *step.lines)]
        lines.append(f"for (int i = 0; i < {action.elements.size}; i++) action[i] = {action_operand.text};")
        helpers = [text for name, text in _HELPERS.items() if any(f"{name}(" in line for line in lines)]
        tables = [_table("float", name, [literal(float(v)) for v in array]) for name, array in self._weights.items()]
        tables += [_table("int", name, [str(v) for v in index]) for name, index in self._maps.items()]
        constant_bytes = 4 * sum(a.size for a in self._weights.values()) + 4 * sum(a.size for a in self._maps.values())
        text = "\n".join(f"    {line}" for line in lines)
        return Body("\n".join([*helpers, *tables]), text, constant_bytes, 4 * work_size)

    def _allocate(self, last_buffer: str) -> tuple[dict[str, int], int]:
        """Place each buffer at the lowest offset at which it overlaps no live buffer.

        Returns the offsets and the total size.
        """
        ends: dict[str, int] = {}
        for at, step in enumerate(self._steps):
            ends |= dict.fromkeys((step.writes, *step.reads), at)
        ends[last_buffer] = len(self._steps)
        offsets: dict[str, int] = {}
        for at, step in enumerate(self._steps):
            offset, size = 0, self._sizes[step.writes]
            for start, used_size in sorted((offsets[name], self._sizes[name]) for name in offsets if ends[name] >= at):
                if offset + size <= start:
                    break
                offset = max(offset, start + used_size)
            offsets[step.writes] = offset
        return offsets, max((at + self._sizes[name] for name, at in offsets.items()), default=0)


def _table(kind: str, name: str, items: Sequence[str]) -> str:
    """Define an array in lines of at most 120 characters."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) > 117:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([f"static const {kind} {name}[{len(items)}] = {{", *lines, line, "};"])
