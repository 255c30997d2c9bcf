"""Tables of docs/methods.md compared with the code."""

from __future__ import annotations

from pathlib import Path

from onrig.learner.algorithm_config import default_section
from onrig.learner.sac_settings import SacConfig

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_table_of_the_sac_family_has_the_defaults_of_its_sections() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    head = next(row for row in rows if row[0] == "option")
    names = [name.strip("`") for name in head[2:]]
    assert names == ["sac", "redq", "droq", "crossq", "rlpd"]
    options = ["critics", "subset", "actor_value", "delay", "normalization", "dropout", "targets"]
    table = {row[0].strip("`"): row[2:] for row in rows if row[0].strip("`") in options and len(row) == len(head)}
    assert list(table) == options
    rates = next(row for row in rows if row[0] == "`lr`, `beta1`")[2:]
    scales = next(row for row in rows if row[0] == "`reward_scale`" and len(row) == len(head))[2:]
    for i, name in enumerate(names):
        section = default_section(name)
        assert isinstance(section, SacConfig)
        for option in options:
            assert table[option][i] == str(getattr(section.resolved_options, option)).removesuffix(".0"), (name, option)
        assert [float(value) for value in rates[i].split(", ")] == [section.lr, section.resolved_options.beta1]
        assert float(scales[i]) == section.reward_scale
