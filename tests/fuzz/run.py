"""A long fuzzing run: ``python tests/fuzz/run.py [--inputs 100000] [TARGET ...]``.

With atheris installed, coverage guides the inputs, and each target runs in its own process.
Without it, the inputs are seeded mutations. Each finding is printed and stored in a file.
The last line is JSON: inputs and findings by target.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.mutate import mutations

FINDINGS = Path("fuzz-findings")


def run_mutations(name: str, inputs: int) -> int:
    """Run a target on seeded mutations; return the number of distinct findings."""
    from fuzz.targets import SEEDS, TARGETS, accepts

    places: set[str] = set()
    for data in mutations(SEEDS[name], inputs, seed=1):
        try:
            accepts(TARGETS[name], data)
        except Exception as error:
            place = str(traceback.extract_tb(error.__traceback__)[-1])
            if place not in places:
                places.add(place)
                FINDINGS.mkdir(exist_ok=True)
                (FINDINGS / f"{name}-{len(places)}").write_bytes(data)
                print(f"{name}: {type(error).__name__}: {error}\n  {place}\n  {data[:200]!r}")
    return len(places)


def run_atheris(name: str, inputs: int) -> int:
    """Run a target under atheris, which ends the process at the first finding; return 0 or 1."""
    from fuzz.targets import SEEDS

    FINDINGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for at, seed in enumerate(SEEDS[name]):
            (Path(corpus) / str(at)).write_bytes(seed)
        command = [
            sys.executable, __file__, "--guided", name, corpus, f"-runs={inputs}", "-seed=1",
            "-rss_limit_mb=4096", "-timeout=60", "-max_len=20000",
            f"-artifact_prefix={FINDINGS}/{name}-",
        ]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        print(
            f"{name}:",
            *result.stdout.splitlines()[-15:],
            *result.stderr.splitlines()[-15:],
            sep="\n  ",
        )
    return int(result.returncode != 0)


def guided(name: str, options: list[str]) -> None:
    """Run a target under atheris, in this process."""
    import atheris

    with atheris.instrument_imports(include=["strop"]):
        from fuzz.targets import TARGETS, accepts

    atheris.Setup([sys.argv[0], *options], lambda data: (accepts(TARGETS[name], data), None)[1])
    atheris.Fuzz()


def main() -> int:
    if sys.argv[1:2] == ["--guided"]:
        guided(sys.argv[2], sys.argv[3:])
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET")
    arguments = parser.parse_args()
    with_atheris = importlib.util.find_spec("atheris") is not None
    run = run_atheris if with_atheris else run_mutations
    print("guided by coverage (atheris)" if with_atheris else "seeded mutations: no atheris here")
    findings = {}
    for name in arguments.targets or TARGETS:
        findings[name] = run(name, arguments.inputs)
        print(f"{name}: {arguments.inputs:,} inputs, findings: {findings[name]}", flush=True)
    print(json.dumps({"inputs": arguments.inputs, "guided": with_atheris, "findings": findings}))
    return int(any(findings.values()))


if __name__ == "__main__":
    sys.exit(main())
