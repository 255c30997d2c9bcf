"""One word for the promise of a rig, determined in one place."""

from __future__ import annotations

import msgspec
import pytest

from onrig.runtime.safety.limits import Limits
from onrig.runtime.safety.promise import Basis, promise_fields, promise_of
from onrig.runtime.safety.rules import Envelope
from onrig.tools.load import load
from tests.runtime.samples import PENDULUM


class WordlessPrediction(msgspec.Struct, frozen=True, tag="unsaid", tag_field="kind"):
    """A family without a word."""

    velocity: str = "velocity"


@pytest.mark.parametrize("name", ["pendulum", "pendulum-hardware", "magman", "pendulum-overnight"])
def test_the_shipped_boxes_are_proved(name: str) -> None:
    assert promise_of(load(name).limits).basis is Basis.PROVED


def test_an_envelope_alone_is_measured_and_without_one_nothing_is_promised() -> None:
    envelope_only = Limits(envelope={"velocity": Envelope(low=-1.0, high=1.0)})
    assert promise_of(envelope_only).basis is Basis.MEASURED
    assert promise_of(Limits()).basis is Basis.NONE


def test_a_family_without_a_word_adds_none() -> None:
    limits = Limits(envelope={"velocity": Envelope(low=-1.0, high=1.0)})
    msgspec.structs.force_setattr(limits, "predicted", WordlessPrediction())
    assert promise_of(limits).basis is Basis.MEASURED


def test_words_and_sentences_differ_and_are_recorded() -> None:
    fields = promise_fields(PENDULUM.limits)
    assert fields["word"] in set(Basis)
    assert fields["sentence"]
    assert [word.has_plants for word in Basis] == [True, True, False, False]
