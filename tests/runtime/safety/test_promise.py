"""One word for the promise of a rig, decided in one place."""

from __future__ import annotations

import msgspec
import pytest

from onrig.runtime.safety.limits import Limits
from onrig.runtime.safety.promise import Word, described, promise_of
from onrig.runtime.safety.rules import Envelope
from onrig.tools.load import load
from tests.runtime.samples import PENDULUM


class Unsaid(msgspec.Struct, frozen=True, tag="unsaid", tag_field="kind"):
    """A family that states no word."""

    velocity: str = "velocity"


@pytest.mark.parametrize("name", ["pendulum", "pendulum-hardware", "magman", "pendulum-overnight"])
def test_the_shipped_boxes_are_proved(name: str) -> None:
    assert promise_of(load(name).limits).word is Word.PROVED


def test_an_envelope_alone_is_measured_and_none_promises_nothing() -> None:
    measured = Limits(envelope={"velocity": Envelope(low=-1.0, high=1.0)})
    assert promise_of(measured).word is Word.MEASURED
    assert promise_of(Limits()).word is Word.NONE


def test_a_family_that_states_no_word_adds_none() -> None:
    limits = Limits(envelope={"velocity": Envelope(low=-1.0, high=1.0)})
    msgspec.structs.force_setattr(limits, "predicted", Unsaid())
    assert promise_of(limits).word is Word.MEASURED


def test_words_and_sentences_differ_and_are_recorded() -> None:
    described_now = described(PENDULUM.limits)
    assert described_now["word"] in set(Word)
    assert described_now["sentence"]
    assert [word.has_plants for word in Word] == [True, True, False, False]
