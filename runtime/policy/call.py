"""Node of a graph together with its input values; the accessors used by the shape rules reject unsupported inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.onnx_wire import DOUBLE, DTYPES, FLOAT, INT64, Array, Node

Shape = tuple[int, ...]

MAX_PARTS: Final = 64
"""Maximum number of inputs or outputs of one node (Concat, Split, Min, Max), and of constants in one list of axes or
indices."""
FLOATS: Final = frozenset({FLOAT, DOUBLE})
_TYPE_CODES: Final[Mapping[np.dtype[np.generic], int]] = {dtype: code for code, dtype in DTYPES.items()}


class Value(NamedTuple):
    """ONNX element type and shape of a value in the graph; ``constant`` holds its content if that is known, as for an
    initializer."""

    elem_type: int
    shape: Shape
    constant: Array | None = None
    bound: int = 0
    """Exclusive upper bound of computed integers, which are never negative; 0 for other values."""


class Result(NamedTuple):
    """Result of a node: element type, shape of each output, and number of operations (multiply-adds or comparable)."""

    elem_type: int
    shapes: tuple[Shape, ...]
    operations: int
    constant: Array | None = None
    """Value of a Constant node."""
    bound: int = 0
    """Exclusive upper bound of computed integers; 0 for other values."""


def value_of(array: Array) -> Value:
    """Return the value of an initializer."""
    return Value(_TYPE_CODES[array.dtype], array.shape, array)


class Call:
    """One node with its input values; the accessors raise ModelRefused for invalid inputs."""

    def __init__(self, node: Node, inputs: tuple[Value | None, ...]) -> None:
        self.node = node
        self._inputs = inputs

    def refusal(self, reason: str) -> ModelRefused:
        """Return a refusal of the model that names this node as its cause."""
        return ModelRefused("shapes", f"{self.node.op_type} -> {self.node.outputs[0]!r}: {reason}")

    def value(self, index: int) -> Value:
        """Return a float input; raises ModelRefused if it is missing or contains integers."""
        value = self.optional(index)
        if value is None:
            raise self.refusal(f"input {index} is missing")
        if value.elem_type not in FLOATS:
            raise self.refusal(f"input {index} has element type {value.elem_type}, expected floats")
        return value

    def optional(self, index: int) -> Value | None:
        """Return an input; None if it is absent."""
        return self._inputs[index] if index < len(self._inputs) else None

    def values(self) -> list[Value]:
        """Return all inputs, which must be floats of the same type."""
        values = [self.value(i) for i in range(len(self._inputs))]
        if len({v.elem_type for v in values}) != 1:
            raise self.refusal("inputs differ in type")
        return values

    def indices(self, index: int, rank: int = 1) -> list[int] | None:
        """Return the constant integers in an optional input (None if absent), which must have one dimension or, if
        ``rank`` is 0, may also be a scalar."""
        value = self.optional(index)
        if value is None:
            return None
        if value.constant is None or value.elem_type != INT64:
            raise self.refusal(f"input {index} must be constant int64, since shapes depend on it")
        if len(value.shape) not in {rank, 1} or value.constant.size > MAX_PARTS:
            raise self.refusal(f"input {index} has shape {value.shape}")
        return [int(v) for v in value.constant.reshape(-1)]

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if not isinstance(attribute.value, int):
            raise self.refusal(f"attribute {name!r} is not an integer")
        return attribute.value

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return a list attribute, which must have as many integers as its default."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        value = attribute.value
        if not isinstance(value, tuple) or len(value) != len(default) or not all(isinstance(v, int) for v in value):
            raise self.refusal(f"attribute {name!r} is not a list of {len(default)} integers")
        return tuple(map(int, value))

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean attribute; only 0 and 1 are accepted, since runtimes disagree on other values."""
        value = self.integer(name, int(default))
        if value not in {0, 1}:
            raise self.refusal(f"attribute {name!r} is {value}, neither 0 nor 1")
        return value == 1

    def axis(self, axis: int, rank: int) -> int:
        """Normalise an axis into [0, rank)."""
        if not -rank <= axis < rank:
            raise self.refusal(f"axis {axis} is outside {rank} dimensions")
        return axis % rank

    def axes(self, axes: list[int], rank: int) -> list[int]:
        """Normalise axes into [0, rank); none may occur twice."""
        if len(normalised_axes := [self.axis(a, rank) for a in axes]) != len(set(normalised_axes)):
            raise self.refusal(f"the axes {axes} contain duplicates")
        return normalised_axes

    def broadcast(self, *shapes: Shape) -> Shape:
        """Return the shape to which ``shapes`` broadcast under numpy's rules."""
        rank = max(map(len, shapes))
        shape: list[int] = []
        for dimensions in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
            lengths = {d for d in dimensions if d != 1}
            if len(lengths) > 1:
                raise self.refusal(f"shapes {list(shapes)} cannot be broadcast together")
            shape.append(lengths.pop() if lengths else 1)
        return tuple(shape)

    def constant(self) -> Array:
        """Return the content of a Constant node: a tensor, a number or a list of numbers."""
        if len(self.node.attributes) == 1:
            [(name, (_, value))] = self.node.attributes.items()
            if isinstance(value, np.ndarray):
                return value
            if name.startswith("value_float") and value != ():
                return np.array(value, DTYPES[FLOAT])
            if value != ():
                return np.array(value, DTYPES[INT64])
        raise self.refusal(f"expected one value, got the attributes {[*self.node.attributes]}")
