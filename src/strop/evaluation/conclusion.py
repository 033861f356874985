"""What a comparison says in one sentence: which method ranks better here, and how sure that is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.common.text import counted
from strop.evaluation.scoring import Report

_DRAWS = 2000


def bootstrap_interval(gains: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the mean, in percent."""
    rng, size = np.random.default_rng(0), len(gains)
    means = [gains[rng.integers(0, size, size)].mean() for _ in range(_DRAWS)]
    low, high = np.percentile(100 * np.array(means), [2.5, 97.5])
    return float(low), float(high)


def gain(report: Report, method: str, measure: str | None = None) -> tuple[float, float, float]:
    """Return a method's gain over the baseline and its 95% interval, in percent points."""
    measure = measure or report.measures[0]
    of, base = (report.per_query[name][measure] for name in (method, report.baseline))
    gains = np.array([of[query] - base[query] for query in base])
    return 100 * float(gains.mean()), *bootstrap_interval(gains)


def conclusion(report: Report, method: str) -> str:
    """Say in one sentence whether a method is better than the baseline."""
    mean, low, high = gain(report, method)
    if low > 0:
        verdict = f"{method} ranks better than {report.baseline} here"
    elif high < 0:
        verdict = f"{method} ranks worse than {report.baseline} here"
    else:
        verdict = f"{method} and {report.baseline} cannot be told apart here"
    return (
        f"{verdict}: {report.measures[0]} {mean:+.1f} points (95% interval {low:+.1f} to"
        f" {high:+.1f}, {counted(report.queries, 'query')})."
    )
