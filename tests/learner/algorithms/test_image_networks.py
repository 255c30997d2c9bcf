"""Algorithms that learn from packed images: against torch, and as exported policies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.hw.rig import Camera
from onrig.learner.algorithm_config import AlgorithmConfig, Convolution, Image
from onrig.learner.algorithm_settings import RainbowConfig, Td3Config
from onrig.learner.algorithms import Exportable, Minibatches, Stochastic, algorithm_for
from onrig.learner.algorithms.sac import Sac
from onrig.learner.algorithms.td3 import Td3
from onrig.learner.sac_settings import RedqConfig, SacConfig
from onrig.learner.settings import LearnerSettings
from onrig.learner.tape.convolutions import image_inputs
from onrig.runtime.images import VALUE_RANGE, image_signals, pack_image, unpack_images
from onrig.runtime.memory.order.uniforms import restore_stream
from onrig.runtime.policy.admission import AdmissionLimits, Admitted, admit
from onrig.runtime.policy.contract import DETERMINISTIC, PolicyContract, Signal
from onrig.runtime.policy.network import compile_network
from onrig.runtime.policy.onnx_wire import read_model
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.policy.session import PolicySession
from tests.learner.algorithms.torch_sac import CriticRandomness, TorchSac
from tests.learner.numpy_nets import Data, minibatch_data
from tests.learner.reference import minibatches, select_minibatch, select_trial
from tests.learner.torch_nets import Tensors, trial_parameters

SMALL_IMAGE = Image((10, 7), 2, (Convolution(3, 3, 2), Convolution(4, 2, 1)))
"""70 pixels in 24 values, the last two bytes unused; layers of 4 by 3 and 3 by 2."""
TD3 = Td3Config(hidden=(9, 8), batch=5, reward_scale=0.1, tau=0.05, delay=1, images=SMALL_IMAGE)
SAC = SacConfig(hidden=(9, 8), batch=5, reward_scale=0.1, tau=0.05, lr=1e-3, temperature=0.2, images=SMALL_IMAGE)
CASES: list[tuple[str, AlgorithmConfig]] = [
    ("td3", TD3),
    ("td3", msgspec.structs.replace(TD3, images=Image((4, 5), 3))),
    ("sac", msgspec.structs.replace(SAC, log_std=(-3.0, 0.5))),
    ("redq", RedqConfig(hidden=(9, 8), batch=5, critics=3, images=SMALL_IMAGE)),
    ("rainbow", RainbowConfig(hidden=(9, 8), batch=5, levels=5, atoms=6, images=SMALL_IMAGE)),
]


def _image(config: AlgorithmConfig) -> Image:
    assert config.image is not None
    return config.image


def _random_images(rng: np.random.Generator, shape: tuple[int, ...], image: Image) -> NDArray[np.float64]:
    """Random images, packed and normalised, (*shape, values)."""
    count, pixels = int(np.prod(shape)) * image.frames, image.size[0] * image.size[1]
    values = np.array([pack_image(rng.bytes(pixels)) for _ in range(count)])
    return values.reshape(*shape, -1) / (0.5 * VALUE_RANGE) - 1.0


def _data(seed: int, shape: tuple[int, int, int], image: Image, m: int = 1) -> Minibatches:
    rng = np.random.default_rng(seed)
    batches = minibatches(rng, shape, 1, m)
    return replace(
        batches, observation=_random_images(rng, shape, image), next_observation=_random_images(rng, shape, image)
    )


def _inputs(observation: NDArray[np.floating], image: Image) -> NDArray[np.float64]:
    """Pixels from 0 to 1 by row, column and frame."""
    frames = unpack_images((observation + 1.0) * (0.5 * VALUE_RANGE), image.size[0] * image.size[1])
    return image_inputs(frames, np.dtype(np.float64)).astype(np.float64)


def _reference_data(batches: Minibatches, trial: int, image: Image) -> Data:
    data = minibatch_data(batches, 0, trial)
    return data._replace(s=_inputs(data.s, image), s_next=_inputs(data.s_next, image))


def _torch_net(p: Tensors, net: str, x: torch.Tensor, image: Image) -> torch.Tensor:
    """Linear outputs of convolutions of the image columns, joined by the other columns, and of dense layers."""
    (rows, columns), frames = image.size, image.frames
    images, other_signals = x[:, : rows * columns * frames], x[:, rows * columns * frames :]
    y = images.reshape(-1, rows, columns, frames).permute(0, 3, 1, 2)
    for i, layer in enumerate(image.convolutions):
        weight, bias = p[f"{net}/weight{i}"], p[f"{net}/bias{i}"][0]
        filters = weight.reshape(layer.side, layer.side, -1, layer.channels).permute(3, 2, 0, 1)
        y = torch.relu(torch.nn.functional.conv2d(y, filters, bias, stride=layer.stride))
    x = torch.cat((y.permute(0, 2, 3, 1).reshape(len(x), -1), other_signals), 1)
    last_layer = sum(name.startswith(f"{net}/weight") for name in p) - 1
    for i in range(len(image.convolutions), last_layer + 1):
        x = x @ p[f"{net}/weight{i}"] + p[f"{net}/bias{i}"]
        x = x if i == last_layer else torch.relu(x)
    return x


class _TorchSac(TorchSac):
    def _layers(
        self,
        net: str,
        x: torch.Tensor,
        dropout: float = 0.0,
        *,
        is_training: bool = False,
        updates_statistics: bool = False,
    ) -> torch.Tensor:
        return _torch_net(self.p, net, x, _image(self.config))


@pytest.mark.parametrize("image", [SMALL_IMAGE, Image((4, 5), 3)])
def test_the_gradients_of_td3_equal_torchs(image: Image) -> None:
    config = msgspec.structs.replace(TD3, images=image, lr=1e-3)
    td3 = Td3(config, image.packed_values, 2, [np.random.default_rng(s) for s in (3, 4)], dtype=np.float64)
    state_before, batches = td3.state(), _data(6, (1, 2, 5), image, 2)
    signals, state_after = td3.update(batches), td3.state()
    for trial in range(2):
        data = _reference_data(batches, trial, image)
        s, a, r, s_next, alive, weight = (torch.tensor(field) for field in data)
        stream = np.random.default_rng()
        restore_stream(stream, state_before["streams"][trial])
        noise = torch.tensor(np.clip(0.2 * stream.standard_normal((5, 2)), -0.5, 0.5))
        p = trial_parameters(state_before, trial, ("actor", "critic1", "critic2"))
        with torch.no_grad():  # targets start as copies
            next_action = torch.clip(torch.tanh(_torch_net(p, "actor", s_next, image)) + noise, -1.0, 1.0)
            pair = torch.cat((s_next, next_action), 1)
            q_next = torch.minimum(*(_torch_net(p, f"critic{i}", pair, image)[:, 0] for i in (1, 2)))
            y = 0.1 * r + config.gamma * alive * q_next
        td = [y - _torch_net(p, f"critic{i}", torch.cat((s, a), 1), image)[:, 0] for i in (1, 2)]
        np.testing.assert_allclose(signals.td[0, trial], ((td[0] + td[1]) / 2).detach(), rtol=1e-9, atol=1e-12)
        (weight * (td[0] ** 2 + td[1] ** 2)).mean().backward()  # type: ignore[no-untyped-call]
        moved_leaves = trial_parameters(state_after, trial, ("critic1",)) | trial_parameters(
            state_before, trial, ("actor",)
        )
        pair = torch.cat((s, torch.tanh(_torch_net(moved_leaves, "actor", s, image))), 1)
        (-_torch_net(moved_leaves, "critic1", pair, image).mean()).backward()  # type: ignore[no-untyped-call]
        for net, parameters in (("critic1", p), ("critic2", p), ("actor", moved_leaves)):
            gradients = [v.grad for name, v in parameters.items() if name.startswith(f"{net}/")]
            expected = torch.cat([g.reshape(-1) for g in gradients if g is not None]).numpy()
            moments = np.asarray(state_after[f"adam/{net}"][trial], np.float64)[
                0
            ]  # the means are a tenth of the gradient
            np.testing.assert_allclose(10.0 * moments[: len(expected)], expected, rtol=1e-9, atol=1e-9, err_msg=net)
            assert np.abs(expected).max() > 1e-4


@pytest.mark.parametrize("changes", [{}, {"critics": 3, "subset": 3, "actor_value": "mean", "delay": 2}])
def test_the_updates_of_sac_equal_torchs(changes: dict[str, Any]) -> None:
    config = msgspec.structs.replace(SAC, **changes)
    sac = Sac(config, SMALL_IMAGE.packed_values, 2, [np.random.default_rng(0)], dtype=np.float64)
    for k in range(4):
        state_before, batches = sac.state(), _data(k, (1, 1, 5), SMALL_IMAGE, 2)
        signals = sac.update(batches)
        stream = np.random.default_rng()
        restore_stream(stream, state_before["streams"][0])
        reference = _TorchSac(state_before, 0, config)
        noise = CriticRandomness(stream.standard_normal((2, 5, 2)), range(config.resolved_options.critics))
        errors, target = reference.update(_reference_data(batches, 0, SMALL_IMAGE), noise)
        np.testing.assert_allclose(signals.td[0, 0], errors.mean(axis=0), rtol=1e-9, atol=1e-9)
        assert signals.target is not None
        np.testing.assert_allclose(signals.target[0, 0], target, rtol=1e-9, atol=1e-9)
        for name, value in reference.p.items():
            np.testing.assert_allclose(sac.state()[name][0], value.detach(), rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("name", "config"), CASES)
def test_trials_and_minibatches_are_independent_bit_for_bit(name: str, config: AlgorithmConfig) -> None:
    settings, image = LearnerSettings(name, **{name: config}), _image(config)
    joint, sequential, single = (
        algorithm_for(settings, image.packed_values, 1, [np.random.default_rng(s) for s in seeds])
        for seeds in ((1, 2), (1, 2), (2,))
    )
    batches = _data(0, (3, 2, 5), image)
    td = joint.update(batches).td
    assert single.update(select_trial(batches, 1)).td.tobytes() == td[:, [1]].tobytes()
    for k in range(3):
        assert sequential.update(select_minibatch(batches, k)).td[0].tobytes() == td[k].tobytes()


@pytest.mark.parametrize(("name", "config"), CASES)
def test_exported_policies_act_like_the_algorithm_and_are_admitted(name: str, config: AlgorithmConfig) -> None:
    settings, image = LearnerSettings(name, **{name: config}), _image(config)
    algorithm = algorithm_for(settings, image.packed_values, 1, [np.random.default_rng(1)])
    algorithm.update(_data(0, (20, 1, 5), image))
    assert isinstance(algorithm, Exportable)
    contract = _contract(image, algorithm.behaviour)
    model = algorithm.policy_graph(0, contract)
    session, rng = PolicySession(model), np.random.default_rng(2)
    observations = _random_images(rng, (100,), image)
    noise = np.zeros((100, 1), np.float32)
    if session.noise is not None:
        noise[50:] = np.clip(rng.standard_normal((50, 1)), -3.0, 3.0)
    actions = np.empty((100, 1))
    for k in range(100):
        session.observation[0] = (observations[k] + 1.0) * (0.5 * VALUE_RANGE)
        if session.noise is not None:
            session.noise[0] = noise[k]
        session.run()
        actions[k] = session.action[0] / 2.0 - 0.5
    expected = algorithm.policy(observations[None])[0]
    if session.noise is not None:
        assert isinstance(algorithm, Stochastic)
        expected = algorithm.sample(observations[None], noise[None])[0]
        np.testing.assert_allclose(actions[:50], algorithm.policy(observations[None])[0, :50], atol=1e-5)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    verdict = admit(model, contract, probe_states(contract, 64, 0), AdmissionLimits(latency_is_advisory=True))
    assert isinstance(verdict, Admitted), verdict
    assert not verdict.native
    assert compile_network(read_model(model), ["observation", "noise"], ["action", "mean", "std", "drawn"]) is None


def _contract(image: Image, behaviour: str = DETERMINISTIC) -> PolicyContract:
    signals = image_signals(Camera("eye", *image.size)) * image.frames
    observations = tuple(Signal(f"{s.name}-{i}", s.unit, s.low, s.high) for i, s in enumerate(signals))
    format_version = 1 if behaviour == DETERMINISTIC else 2
    actions = (Signal("voltage", "V", -1.0, 3.0),)
    return PolicyContract("rig", observations, actions, 50.0, 7, "", 0, behaviour=behaviour, format=format_version)


def test_values_out_of_range_count_as_its_ends_and_fractions_of_a_pixel_are_dropped() -> None:
    td3 = Td3(TD3, SMALL_IMAGE.packed_values, 1, [np.random.default_rng(1)])
    session = PolicySession(td3.policy_graph(0, _contract(SMALL_IMAGE)))

    def act(value: NDArray[np.float64]) -> float:
        session.observation[0] = value
        session.run()
        return float(session.action[0, 0])

    packed_values = np.random.default_rng(0).integers(0, 1 << 23, 48).astype(np.float64)
    assert act(packed_values + 0.5) == act(packed_values)
    assert act(np.full(48, -1e30)) == act(np.zeros(48))
    assert act(np.full(48, 1e30)) == act(np.full(48, VALUE_RANGE - 1.0))


@pytest.mark.parametrize(("name", "config"), CASES)
def test_observations_without_the_images_are_refused(name: str, config: AlgorithmConfig) -> None:
    settings, image = LearnerSettings(name, **{name: config}), _image(config)
    rows, columns = image.size
    message = f"{image.frames} images of {rows} by {columns} pixels need {image.packed_values} observations, got 7"
    with pytest.raises(ValueError, match=message):
        algorithm_for(settings, 7, 1, [np.random.default_rng(0)])
    algorithm = algorithm_for(settings, image.packed_values, 1, [np.random.default_rng(0)])
    assert isinstance(algorithm, Exportable)
    with pytest.raises(ValueError, match="do not map"):
        algorithm.policy_graph(0, _contract(msgspec.structs.replace(image, frames=1), algorithm.behaviour))


def test_normalised_networks_have_no_images() -> None:
    for changes, paths in (
        ({"normalization": "layer"}, ["normalization"]),
        ({"dropout": 0.1}, ["dropout"]),
        ({"images": Image((10, 7), 2, (Convolution(3, 8, 1),))}, ["images.convolutions.0"]),
    ):
        assert [path for path, _ in msgspec.structs.replace(SAC, **changes).problems()] == paths
