"""The settings for the choice of references; importing this loads no compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.errors import BadInput


def seeding_trials(k: int) -> int:
    """Return how many candidates k-means++ tries for each centre: as many as scikit-learn."""
    return 2 + int(np.log(k))


@dataclass(frozen=True)
class ReferenceSettings:
    """How references are chosen; the defaults are the paper's.

    ``smallest`` to ``largest`` are the numbers of clusters to try, each with ``n_init`` runs of
    KMeans. All documents use the same ``seed``, so the references of a document depend on its
    neighbours only, not on its place in the corpus.
    """

    neighbors: int = 100
    smallest: int = 3
    largest: int = 10
    n_init: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.smallest <= self.largest:
            raise BadInput(
                f"k must be a range from 2 or more up, such as 3:10, not "
                f"{self.smallest}:{self.largest}"
            )
        if self.neighbors < 1 or self.n_init < 1:
            raise BadInput(
                f"neighbors and n_init must be 1 or more, not {self.neighbors} and {self.n_init}"
            )

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ReferenceSettings:
        """Return stored settings; missing keys get their defaults, unknown keys are ignored."""
        names = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in stored.items() if key in names})

    def draws(self) -> NDArray[np.float64]:
        """Return random numbers for every k: (number of k, n_init, draws of the largest k)."""
        sizes = range(self.smallest, self.largest + 1)
        widest = 1 + (self.largest - 1) * seeding_trials(self.largest)
        draws = np.zeros((len(sizes), self.n_init, widest))
        for at, k in enumerate(sizes):
            needed = 1 + (k - 1) * seeding_trials(k)
            generator = np.random.RandomState(self.seed)
            draws[at, :, :needed] = generator.random_sample((self.n_init, needed))
        return draws
