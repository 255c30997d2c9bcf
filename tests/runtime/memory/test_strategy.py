from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime import registry
from onrig.runtime.memory.strategy import (
    Strategy,
    parse_strategy,
    sampling_names,
)

KEEPERS = registry.load_available(registry.RETENTIONS)


@given(
    retention=st.one_of(
        st.tuples(st.sampled_from([name for name, k in KEEPERS.items() if k.parameter is None]), st.none()),
        st.tuples(
            st.sampled_from([name for name, k in KEEPERS.items() if k.parameter is not None]), st.floats(0.0, 100.0)
        ),
    ),
    sampling=st.sampled_from(sampling_names()),
)
def test_every_strategy_is_parsed_back_from_its_text(retention: tuple[str, float | None], sampling: str) -> None:
    strategy = Strategy(retention[0], sampling, retention[1])
    assert parse_strategy(str(strategy)) == strategy


def test_text_is_the_notation_of_the_paper() -> None:
    assert str(parse_strategy(" Expl( 1 ) [ PER+IS ] ")) == "Expl(1.0)[PER+IS]"
    assert str(parse_strategy("FIFO[Uniform+FIS]")) == "FIFO[Uniform+FIS]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "LIFO[Uniform]",
            "unknown retention 'LIFO' (did you mean 'FIFO'?); known retentions: Expl(ALPHA), FIFO, FULL, ",
        ),
        ("FIFO[Random]", "unknown sampling 'Random'; known retentions"),
        ("FIFO[Uniform[PER]]", "Uniform takes no inner sampling, got '[PER]'"),
        ("FIFO[Prior(0.5)]", "Prior needs an inner sampling in brackets, such as Prior(0.5)[Uniform]"),
        ("FIFO[Prior[Uniform]]", "Prior needs the share of its prior experiences, such as Prior(0.5)"),
        ("FIFO[Prior(1.5)[Uniform]]", "the share of Prior must be a number of 0 to 1, got '1.5'"),
        ("FIFO[Prior(0.5)[Random]]", "unknown sampling 'Random'"),
        ("FIFO[Prior(0.5)[KLPER(4)]]", "Prior cannot contain KLPER, which only draws complete minibatches"),
        ("FIFO[Prior(0.5)[Prior(0.5)[Uniform]]]", "not of the form"),
        (
            "FIFO[Random]",
            "known samplings: ERO, KLPER(4), NERS, PER, PER+IS, PER+FIS, Prior(0.5)[Uniform], PropPER, PropPER+IS, ",
        ),
        ("FIFO", "not of the form RETENTION[SAMPLING]"),
        ("", "not of the form"),
        ("FIFO[Uniform", "not of the form"),
        ("FIFO(1.0)[Uniform]", "FIFO takes no exponent"),
        ("TDE[PER]", "TDE needs the exponent"),
        ("TDE()[PER]", "number of 0 to 100, got ''"),
        ("Expl(-1)[PER]", "number of 0 to 100, got '-1'"),
        ("Expl(nan)[PER]", "got 'nan'"),
        ("Expl(inf)[PER]", "got 'inf'"),
        ("TDE(1e308)[PER]", "number of 0 to 100, got '1e308'"),
        ("Expl(one)[PER]", "got 'one'"),
    ],
)
def test_an_invalid_name_is_refused_with_the_known_ones(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_strategy(text)
