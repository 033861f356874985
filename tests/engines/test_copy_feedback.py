"""Feedback ranks the same in a published copy as in the folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import fakes

import strop


def test_feedback_in_a_copy(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    url = f"duckdb://{tmp_path / 'copy.duckdb'}"
    draw = np.random.default_rng(0)
    with fakes.create(tmp_path / "index") as index:
        index.sharpen("sentences")
        words = "an old dog in the snow cat hat tree sea red blue runs".split()
        index.add({"id": f"d{at}", "text": " ".join(draw.choice(words, 6))} for at in range(90))
        index.publish(url)
        with strop.connect(url, embedder=fakes.Bag(), name="bag", dim=fakes.DIM) as copy:
            for k in (5, 60):
                want, found = (it.search("an old dog", k) for it in (index, copy))
                assert found.ids.tolist() == want.ids.tolist()
                np.testing.assert_allclose(found.scores, want.scores, atol=1e-5)
        assert want.ids.tolist() != index.search("an old dog", 60, "sharp:feedback=0").ids.tolist()
