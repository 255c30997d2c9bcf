"""Exploration noise, drawn from a separate stream per episode: on actions, and on a policy's weights.

Noise on actions is in normalised action units and is added to the normalised policy action; the sum is clipped to
[-1, 1].  A stochastic policy's own noise is an input of its graph instead, and epsilon-greedy exploration replaces the
action.

Parameter noise perturbs a policy's weights for an episode.  Source: de Bruin et al. 2018, §8.5, and Plappert et al.,
"Parameter Space Noise for Exploration" (2018): weights + N(0, sigma^2), where every N steps sigma is multiplied by
``adaption`` if the distance in action space was below its target, and divided by it otherwise.  Deviations: the
distance is measured on the states that the perturbed policy visits (the loop has no memory to sample from), and a new
sigma takes effect with the next episode's perturbation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from onrig.hw.rig import Observation
from onrig.runtime.explore.schedule import amplitudes, is_quiet
from onrig.runtime.explore.settings import (
    ActionNoise,
    EpsilonGreedy,
    Exploration,
    Gaussian,
    OrnsteinUhlenbeck,
    OwnNoise,
    ParameterNoise,
    ScheduledNoise,
)
from onrig.runtime.policy.contract import HIDDEN, INPUT_NAME, NOISE_CUT, ModelRefused
from onrig.runtime.policy.onnx_wire import Array, Node, OnnxModel, read_model

Signal = npt.NDArray[np.float64]


def ornstein_uhlenbeck(white: Signal, gain: float, friction: float) -> Signal:
    """Correlate N(0, 1) draws (steps, ...) over the steps: u(k+1) = u(k) + gain white(k) - friction u(k), u(0) = 0.

    Source: de Bruin et al. 2018, App. B.2, with the symbols read literally (docs/methods.md, "Ornstein-Uhlenbeck").
    """
    noise = gain * white
    u = np.zeros_like(noise)
    for k in range(1, len(u)):
        u[k] = (1.0 - friction) * u[k - 1] + noise[k - 1]
    return u


def correlated_noise(white: Signal, friction: float) -> Signal:
    """Correlate N(0, 1) draws (steps, ...) over the steps, so that every step, including the first, remains N(0, 1)."""
    persistence = 1.0 - friction
    u = white.copy()
    for k in range(1, len(u)):
        u[k] = persistence * u[k - 1] + sqrt(1.0 - persistence * persistence) * white[k]
    return u


def ou_signal(settings: OrnsteinUhlenbeck, rng: np.random.Generator, steps: int, dimensions: int) -> Signal:
    """Draw the signal of process ``ou``."""
    return ornstein_uhlenbeck(rng.standard_normal((steps, dimensions)), settings.gain, settings.friction)


def gaussian_signal(settings: Gaussian, rng: np.random.Generator, steps: int, dimensions: int) -> Signal:
    """Draw the signal of process ``gaussian``."""
    return settings.std * rng.standard_normal((steps, dimensions))


def raw_signal(exploration: Exploration, rng: np.random.Generator, steps: int, dimensions: int) -> Signal | None:
    """Draw an episode's signal (steps, dimensions), neither clipped nor scaled; None if the process adds no noise to
    actions.

    For ``EpsilonGreedy``, the signal is that of ``random_levels``.
    """
    match exploration:
        case ActionNoise():
            return exploration.draw(rng, steps, dimensions)
        case OwnNoise(friction=friction):
            white = rng.standard_normal((steps, dimensions))
            return white if friction is UNSET else correlated_noise(white, friction)
        case EpsilonGreedy(levels=levels):
            return random_levels(rng, steps, levels)
    return None


def random_levels(rng: np.random.Generator, steps: int, levels: int) -> Signal:
    """Draw an array (steps, 2): per step a uniform number, and a random level that the step takes if the number is
    below the amplitude."""
    draws = rng.random((steps, 2))
    draws[:, 1] = quantize(draws[:, 1], levels)
    return draws


def quantize(uniform: Signal, levels: int) -> Signal:
    """Map uniform numbers over [0, 1) to levels on [-1, 1]."""
    return 2.0 * np.minimum(np.floor(uniform * levels), levels - 1) / (levels - 1) - 1.0


def signal_width(exploration: Exploration, dimensions: int) -> int:
    """Return the number of values per step of the signal, given the number of actions."""
    return 2 if isinstance(exploration, EpsilonGreedy) else dimensions


def clip_limit(exploration: Exploration) -> float:
    """Return the magnitude at which an episode's signal is clipped."""
    return NOISE_CUT if isinstance(exploration, OwnNoise) else 1.0


def unit_signal(
    exploration: Exploration, rng: np.random.Generator, steps: int, dimensions: int
) -> list[tuple[float, ...]]:
    """Draw an episode's clipped signal, one tuple of `signal_width` values per step; empty if the process adds no noise
    to actions.

    The amplitude multiplies the *clipped* noise: noise scaled before clipping would never become small
    (docs/methods.md, "Clipped noise").
    """
    signal = raw_signal(exploration, rng, steps, dimensions)
    limit = clip_limit(exploration)
    return [] if signal is None else [tuple(row) for row in np.clip(signal, -limit, limit).tolist()]


def episode_noise(
    exploration: Exploration, rng: np.random.Generator, episode: int, steps: int, actuators: Sequence[str]
) -> list[tuple[float, ...]]:
    """Return the scheduled exploration signal (m,) per step of one training episode, before any gate.

    Raises ValueError for processes that depend on the policy: parameter noise and random levels.
    """
    if isinstance(exploration, ParameterNoise):
        raise ValueError("parameter noise depends on the policy")
    if isinstance(exploration, EpsilonGreedy):
        raise ValueError("random levels replace the policy's action")
    signal = raw_signal(exploration, rng, steps, len(actuators))
    if signal is None or not isinstance(exploration, ScheduledNoise) or is_quiet(exploration.quiet, episode):
        return [(0.0,) * len(actuators)] * steps
    limit = clip_limit(exploration)
    scaled_signal = np.array(amplitudes(exploration, actuators, episode)) * np.clip(signal, -limit, limit)
    return [tuple(row) for row in scaled_signal.tolist()]


_MIN_STD, _MAX_STD = 1e-6, 10.0


class AdaptiveScale(NamedTuple):
    """Standard deviation of the noise on the weights, and the distances measured since its last adaptation."""

    std: float
    squares: float = 0.0
    """Sum of the squared distances, each the mean over the actuators."""
    steps: int = 0


def adapt_scale(noise: ParameterNoise, scale: AdaptiveScale, deviation: Sequence[float]) -> AdaptiveScale:
    """Add one step's distance (m,) between the actions of the perturbed and the unperturbed policy; adapt every N
    steps."""
    squared_distance = 0.0
    for d in deviation:
        squared_distance += d * d
    squares, steps = scale.squares + squared_distance / len(deviation), scale.steps + 1
    if steps < noise.adapt_every:
        return AdaptiveScale(scale.std, squares, steps)
    is_within_target = sqrt(squares / steps) <= noise.target_std
    std = scale.std * noise.adaption if is_within_target else scale.std / noise.adaption
    return AdaptiveScale(min(max(std, _MIN_STD), _MAX_STD))


class WeightNoise:
    """Noise on the policy's weights over a run, with its adaptive scale; inactive for other exploration processes."""

    def __init__(self, exploration: Exploration, signals: Sequence[Observation]) -> None:
        """``signals``: inputs of the policy."""
        self._settings: Final = exploration if isinstance(exploration, ParameterNoise) else None
        low, high = np.array([s.low for s in signals]), np.array([s.high for s in signals])
        self._centre: Final = 0.5 * (low + high)
        self._half_range: Final = 0.5 * (high - low)
        self.scale = AdaptiveScale(0.0 if self._settings is None else self._settings.target_std)

    def perturb(self, model: bytes, rng: np.random.Generator) -> bytes:
        """Return the ONNX model with noise on its weights; raises ModelRefused."""
        return perturbed_model(model, rng, self.scale.std, self._centre, self._half_range)

    def record_deviation(self, deviation: Sequence[float]) -> None:
        """Adapt the scale to one step's distance (m,) between the actions of the perturbed and the unperturbed
        policy."""
        if self._settings is not None:
            self.scale = adapt_scale(self._settings, self.scale, deviation)


def perturbed_model(
    model: bytes,
    rng: np.random.Generator,
    std: float,
    centre: npt.NDArray[np.float64],
    half_range: npt.NDArray[np.float64],
) -> bytes:
    """Return the same ONNX model with N(0, std) on its weights and biases, which are patched in place.

    ``centre`` and ``half_range`` (n,) normalise the observation.  A first layer that takes the observation in SI units
    contains the normalisation in its weights (``onrig.learner.export``); its noise is scaled accordingly, so that std
    has the same meaning in every layer: noise W' on normalised inputs is W' / half_range on the weights and -centre W'
    / half_range on the bias.  Raises ModelRefused if the model has no weights.
    """
    graph = read_model(model)
    if any(port.name == HIDDEN for port in graph.inputs):
        raise ModelRefused("shapes", "parameter noise needs a policy without a hidden state")
    patched = bytearray(model)
    has_weights = False
    for layer in _dense_layers(graph):
        has_weights = True
        weight = graph.initializers[layer.weight]
        noise = std * rng.standard_normal(weight.shape)
        bias = None if layer.bias is None else graph.initializers[layer.bias]
        shift = np.zeros(()) if bias is None else std * rng.standard_normal(bias.shape)
        if layer.is_first:
            input_noise = noise.T if layer.is_transposed else noise
            input_noise /= half_range[:, None]
            shift = shift - centre @ input_noise
        _overwrite(model, patched, weight, weight.astype(np.float64) + noise)
        if bias is not None:
            _overwrite(model, patched, bias, bias.astype(np.float64) + shift.reshape(bias.shape))
    if not has_weights:
        raise ModelRefused("operators", "parameter noise found no Gemm or MatMul with constant weights")
    return bytes(patched)


class _Layer(NamedTuple):
    weight: str
    bias: str | None
    is_transposed: bool
    """Whether the weight has shape (out, in)."""
    is_first: bool
    """Whether the layer's input is the observation in SI units."""


def _dense_layers(graph: OnnxModel) -> Iterator[_Layer]:
    """List the graph's dense layers in the order of its nodes, using each initializer only once."""
    visited: set[str] = set()
    for node in graph.nodes:
        if node.op_type not in ("Gemm", "MatMul") or len(node.inputs) < 2:
            continue
        weight = node.inputs[1]
        if weight in visited or not _is_weight(graph, weight, ranks=(2,)):
            continue
        bias = node.inputs[2] if len(node.inputs) > 2 and node.op_type == "Gemm" else _find_added_bias(graph, node)
        if bias is not None and (bias in visited or not _is_weight(graph, bias, ranks=(1, 2))):
            bias = None
        visited |= {weight, *(() if bias is None else (bias,))}
        attribute = node.attributes.get("transB")
        is_transposed = attribute is not None and attribute.value == 1
        yield _Layer(weight, bias, is_transposed, node.inputs[0] == INPUT_NAME)


def _is_weight(graph: OnnxModel, name: str, ranks: tuple[int, ...]) -> bool:
    array = graph.initializers.get(name)
    return array is not None and array.dtype == np.dtype("<f4") and array.ndim in ranks


def _find_added_bias(graph: OnnxModel, product: Node) -> str | None:
    """Return the bias added to a MatMul's result, as written by exporters that do not use Gemm."""
    output = product.outputs[0]
    for node in graph.nodes:
        if node.op_type == "Add" and output in node.inputs:
            return next((name for name in node.inputs if name != output), None)
    return None


def _overwrite(model: bytes, patched: bytearray, old: Array, new: npt.NDArray[np.float64]) -> None:
    """Overwrite the view ``old`` of ``model`` with ``new`` as float32."""
    offset = old.ctypes.data - np.frombuffer(model, np.uint8).ctypes.data
    patched[offset : offset + old.nbytes] = new.astype("<f4").tobytes()
