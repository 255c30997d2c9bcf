"""Images as policy inputs: exact from pixels to a network, and composed with lags."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw.rig import Camera, rig_problems
from onrig.runtime.images import ImageValues, image_signals, pack_image, unpack_images, unpack_normalised_images
from onrig.runtime.inputs import (
    ImageComposition,
    PolicyInput,
    build_image_composition,
    cameras_in_use,
    image_columns,
    input_problems,
    policy_signals,
)
from onrig.runtime.normalisation import Normalisation
from tests.runtime.samples import PENDULUM

FRONT, SIDE = Camera("front", 4, 5), Camera("side", 4, 4)
RIG = msgspec.structs.replace(PENDULUM.rig, cameras=(FRONT, SIDE))
INPUTS = (PolicyInput("velocity"), PolicyInput("front"), PolicyInput("front", lag=2), PolicyInput("angle", "cos"))


@given(st.binary(min_size=16, max_size=130))
def test_every_image_survives_float32_and_normalisation(image: bytes) -> None:
    camera = Camera("front", len(image), 1)
    packed = np.array(pack_image(image), np.float32)
    assert len(packed) == camera.values
    assert unpack_images(packed, camera.pixels).tobytes() == image
    normalised = Normalisation.from_signals(image_signals(camera)).normalise(packed).astype(np.float32)
    assert np.abs(normalised).max() <= 1.0
    assert unpack_normalised_images(normalised, camera.pixels).tobytes() == image


def test_several_consecutive_images_are_unpacked_in_order() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 20), np.uint8)
    row = np.concatenate([pack_image(image.tobytes()) for image in images])
    np.testing.assert_array_equal(unpack_images(row[None], 20)[0], images)


def test_an_image_has_one_signal_per_value_named_after_camera_and_lag() -> None:
    names = [s.name for s in policy_signals(INPUTS, RIG)]
    assert names == ["velocity", *(f"front.{j}" for j in range(7)), *(f"front.{j}-2" for j in range(7)), "cos_angle"]
    assert cameras_in_use(INPUTS, RIG) == (FRONT,)
    assert cameras_in_use(msgspec.UNSET, RIG) == ()


def test_the_first_image_of_an_episode_is_repeated_for_earlier_ones() -> None:
    compose = build_image_composition(INPUTS, RIG)
    assert isinstance(compose, ImageComposition)
    assert compose.history == 2
    observations, images = list[tuple[float, ...]](), list[tuple[ImageValues, ...]]()
    for k in range(4):
        observations = [(0.0, float(k)), *observations[:2]]
        images = [((float(k),) * 7,), *images[:2]]
        row = compose(observations, images)
        assert row == (float(k), *(float(k),) * 7, *(float(max(k - 2, 0)),) * 7, 1.0)
    assert image_columns(INPUTS, RIG) == {FRONT: slice(1, 8)}


def test_columns_follow_the_order_of_the_cameras_of_the_rig() -> None:
    inputs = (PolicyInput("side"), PolicyInput("front"))
    assert list(image_columns(inputs, RIG).items()) == [(FRONT, slice(6, 13)), (SIDE, slice(0, 6))]
    compose = build_image_composition(inputs, RIG)
    assert compose is not None
    assert compose([(0.0, 0.0)], [((1.0,) * 7, (2.0,) * 6)]) == (*(2.0,) * 6, *(1.0,) * 7)


@pytest.mark.parametrize(
    ("inputs", "path", "message"),
    [
        ((PolicyInput("front", lag=1),), "inputs[0].lag", "the newest image of 'front' is missing"),
        ((PolicyInput("front"), PolicyInput("front")), "inputs[1]", "is a duplicate"),
        ((PolicyInput("front", "cos"),), "inputs[0].form", "'front' is a camera"),
        ((PolicyInput("fron"),), "inputs[0].observation", "did you mean 'front'"),
    ],
)
def test_impossible_images_are_refused(inputs: tuple[PolicyInput, ...], path: str, message: str) -> None:
    (problem,) = input_problems(inputs, RIG)
    assert problem[0] == path
    assert message in problem[1]


def test_each_camera_has_a_unique_name() -> None:
    rig = msgspec.structs.replace(
        RIG, cameras=(Camera("angle", 4, 4), FRONT, Camera("front", 4, 4), Camera("a b", 4, 4))
    )
    assert [path for path, _ in rig_problems(rig)] == [f"cameras[{i}].name" for i in (0, 2, 3)]
