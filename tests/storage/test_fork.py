"""An index that was opened before a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")
from strop import Index, StropError

def embed(texts):
    return [[1.0, float(len(text))] for text in texts]

index = Index.create(sys.argv[1], embedder=embed, name="lengths")
index.add([{"id": "1", "text": "one"}])
child = os.fork()
if not child:
    try:
        index.add([{"id": "2", "text": "two"}])
    except StropError as error:
        assert "open it again in this process" in str(error), error
        with Index.open(sys.argv[1], embedder=embed, name="lengths") as own:
            own.add([{"id": "3", "text": "three"}])
            os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
index.add([{"id": "4", "text": "four"}])
assert index.ids() == ["1", "3", "4"]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_writing_in_a_forked_child_is_refused_with_advice(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "x.index"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")
