"""What the machine gives: the update's own matrix products with nothing between them, and one large product."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from onrig.tools.benchmarks.learner_cases import LARGE, LearnerCase, Work
from onrig.tools.benchmarks.learner_flops import Product, products


def build(case: LearnerCase, updates: int, seed: int) -> Callable[[], object]:
    """Make operands and results ready; products alone are done ``updates`` times a call, a large one once."""
    generator = torch.Generator().manual_seed(seed)

    def kernel(product: Product) -> Callable[[], object]:
        shapes = (product.rows, product.inner), (product.inner, product.columns), (product.rows, product.columns)
        a, b, out = (torch.rand((case.trials, *shape), generator=generator) for shape in shapes)
        return partial(torch.bmm, a, b, out=out)

    if case.work is Work.LARGE:
        left, right = (torch.rand((LARGE, LARGE), generator=generator) for _ in range(2))
        return partial(torch.mm, left, right, out=torch.empty_like(left))
    kernels = [kernel(product) for product in products(case, padding=True)]

    def run() -> None:
        for _ in range(updates):
            for do in kernels:
                do()

    return run
