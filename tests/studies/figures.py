"""All figures and tables with results in the five papers: spec, completed share, page, data.

``python -m tests.studies.figures`` writes ``docs/experiments/figures.md``.  Sizes come from the specs and from the
pages; the spec of each figure, or the reason why there is none, is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from onrig.tools.experiments.spec import load_spec
from onrig.tools.experiments.store import read_cells, read_trials

SPECS: Final = Path("configs/experiments")
PAGES: Final = Path("docs/experiments")
PAGE: Final = PAGES / "figures.md"
_HEADER: Final = re.compile(
    r"^(?P<name>\S+): (?P<cells>\d+) cells, (?P<trials>\d+) trials each, (?P<length>\d+) ", re.MULTILINE
)
_UNFINISHED: Final = re.compile(r"^> Incomplete: (\d+) of \d+ trials", re.MULTILINE)


class Figure(NamedTuple):
    """A figure or table, or several that share their trials."""

    name: str
    subject: str
    spec: str = ""
    """Experiment at the paper's size; empty if there is none."""
    pages: tuple[str, ...] = ()
    """Pages of smaller experiments that have been run."""
    note: str = ""
    within: str = ""
    """Figure whose trials include this one's."""
    archived: bool = False
    """Whether the pages' archives also hold cells of other figures: only those of ``spec`` count."""


PAPERS: Final[dict[str, tuple[Figure, ...]]] = {
    "de Bruin et al. 2018": (
        Figure("3", "FULL[PER] and FIFO[Uniform]", "figure-3", ("de-bruin-2018",), within="figure 12"),
        Figure("4", "critic and actor over the retained experiences", note="drawn by every run's report and page"),
        Figure("5, 6, 22", "synthetic experiences, and the size of the memory", "figure-5"),
        Figure("7", "synthetic experiences with other algorithms", "figure-7"),
        Figure("8, 24", "age of synthetic experiences", "figure-8"),
        Figure("9, 23", "control frequency", "figure-9"),
        Figure("10", "synthetic actions and dropped experiences", "figure-10"),
        Figure("11", "noise and synthetic experiences", "figure-11"),
        Figure(
            "12", "retention and sampling under the basic conditions", "figure-12", ("de-bruin-2018",), archived=True,
        ),
        Figure("13", "the same at higher frequencies", "figure-13", ("de-bruin-2018",), archived=True),
        Figure("14", "the same with noise", "figure-14", ("de-bruin-2018",), archived=True),
        Figure("15", "importance sampling", "figure-15", ("de-bruin-2018",), archived=True),
        Figure("Table 6", "noise in the minibatches", "table-6", ("de-bruin-2018",), archived=True),
        Figure("16, 17, 25, 26", "retention and size of the memory, six tasks", "figure-16"),
        Figure("18", "choosing a strategy step by step", "figure-18"),
        Figure("19", "size of the networks", "figure-19"),
        Figure("20", "exponent of Expl", "figure-20"),
        Figure("21", "exponent of PER", "figure-21"),
    ),
    "Oh et al. 2021 (NERS)": (
        Figure("1", "transitions chosen by each sampling strategy", note="an illustration; nothing is measured"),
        Figure(
            "3", "SAC and TD3, Pendulum*, LunarLander, BipedalWalker", "oh-2021-figure-3",
            ("oh-2021-figure-3-quick", "oh-2021-figure-3-lander-quick"),
        ),
        Figure("4, 9", "SAC and TD3, MuJoCo", "oh-2021-figure-4"),
        Figure("5, 10, Table 4", "Rainbow, Atari", "oh-2021-table-4", ("oh-2021-table-4-quick",)),
        Figure("6, 11", "ablation; sampled TD errors and values", "oh-2021-figure-6"),
    ),
    "Novati and Koumoutsakos 2019 (ReF-ER)": (
        Figure("1, 2", "DDPG", "novati-2019-ddpg", ("novati-2019-ddpg-quick",)),
        Figure("3", "NAF", "novati-2019-naf", ("novati-2019-naf-quick",)),
        Figure("4, 5: V-RACER", "V-RACER", "novati-2019-vracer", ("novati-2019-vracer-quick",)),
        Figure("4, 5: PPO", "PPO and V-RACER", "novati-2019-ppo", ("novati-2019-ppo-quick",)),
        Figure("4, 5: ACER", "ACER and V-RACER", "novati-2019-acer", ("novati-2019-acer-quick",)),
        Figure("6", "flow control with LSTM", pages=("hidden-pendulum",), note="no flow solver; LSTM on another task"),
        Figure("7", "sensitivity of V-RACER", "novati-2019-figure-7"),
        Figure("8", "variants of V-RACER", "novati-2019-figure-8"),
    ),
    "Cicek et al. 2021 (KLPER)": (
        Figure("1, 2", "DDPG", "cicek-2021-ddpg", ("cicek-2021-ddpg-quick", "cicek-2021-batches")),
        Figure("3, 4", "TD3", "cicek-2021-td3"),
    ),
    "Han and Sung 2017 (PPO-ER)": (Figure("2", "PPO-ER, PPO and TRPO", "han-2017", ("han-2017-quick",)),),
}  # fmt: skip


class Size(NamedTuple):
    """Number of trials, and their total length in episodes or steps."""

    trials: int
    length: int


def size_of_page(name: str) -> Size:
    """Trials on a page, from its first lines; raises ValueError for a page without them."""
    text = (PAGES / f"{name}.md").read_text("utf-8")
    header = _HEADER.search(text)
    if header is None:
        raise ValueError(f"{name}.md does not say how many trials it has")
    unfinished = _UNFINISHED.search(text)
    trials = int(unfinished[1]) if unfinished else int(header["cells"]) * int(header["trials"])
    return Size(trials, trials * int(header["length"]))


def size_in_archive(page: str, spec_name: str) -> Size:
    """Archived trials of a page in the cells of a spec."""
    archive, spec = PAGES / "data" / page, load_spec(SPECS / f"{spec_name}.yaml").spec
    wanted = {
        _conditions({**spec.set, **block.set, "config": block.config, "strategy": strategy})
        for block in spec.blocks
        for strategy in block.grid["strategy"]
    }
    cells = [cell for cell in read_cells(archive) if _conditions(cell.label) in wanted]
    trials = [len(read_trials(archive, cell).seeds) for cell in cells]
    return Size(sum(trials), sum(n * cell.points for n, cell in zip(trials, cells, strict=True)))


def _conditions(label: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(label.get(axis) for axis in ("config", "strategy", "noise", "rate_hz"))


def size_of_spec(name: str) -> Size:
    """Trials of a spec: every combination of every block."""
    spec = load_spec(SPECS / f"{name}.yaml").spec
    cells = 0
    for block in spec.blocks:
        combinations = 1
        for values in block.grid.values():
            combinations *= len(values)
        cells += combinations
    trials = cells * spec.trials
    return Size(trials, trials * (spec.steps or spec.episodes))


def _share(figure: Figure) -> str:
    if figure.within:
        return f"within {figure.within}"
    if not figure.pages:
        return "not run" if figure.spec else "–"
    sizes = [size_in_archive(page, figure.spec) if figure.archived else size_of_page(page) for page in figure.pages]
    done = Size(*map(sum, zip(*sizes, strict=True)))
    if not figure.spec:
        return f"{done.trials} trials"
    whole = size_of_spec(figure.spec)
    return f"{100 * done.length / whole.length:.2g} % ({done.trials} of {whole.trials} trials)"


def _data(page: str) -> str:
    return f"[kept](data/{page})" if (PAGES / "data" / page).is_dir() else "not kept"


def lines() -> Iterator[str]:
    """Lines of the page."""
    yield "# Every figure and table"
    yield ""
    yield "All results in the five papers, the experiment that repeats each at the paper's size (`configs/experiments`;"
    yield "many have a `-quick` version), and the share of it that has been run: episodes or environment steps over all"
    yield "cells and trials, counted on the linked pages. [Experiments](README.md) draws the conclusions;"
    yield "`python -m tests.studies.figures` writes this page."
    for paper, figures in PAPERS.items():
        yield from (
            "",
            f"## {paper}",
            "",
            "| figure | subject | experiment | share run | results | trials |",
            "|---|---|---|---|---|---|",
        )
        for figure in figures:
            spec = f"`{figure.spec}`" if figure.spec else "–"
            pages = " ".join(f"[{page}]({page}.md)" for page in figure.pages) or "–"
            data = ", ".join(map(_data, figure.pages)) or "–"
            subject = f"{figure.subject} ({figure.note})" if figure.note else figure.subject
            yield f"| {figure.name} | {subject} | {spec} | {_share(figure)} | {pages} | {data} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text("\n".join(lines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
