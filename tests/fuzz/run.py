"""Fuzzing for long: ``python tests/fuzz/run.py [--inputs 100000] [TARGET ...]``.

With atheris installed the inputs are guided by coverage, each target in a process of its own.
Without it they are seeded mutations of the same seeds. A finding is printed and kept in a file.
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

FOUND = Path("fuzz-findings")


def run_mutations(name: str, inputs: int) -> int:
    """Run a target on seeded mutations; return the number of findings that differ."""
    from fuzz.targets import SEEDS, TARGETS, accepts

    places: set[str] = set()
    for data in mutations(SEEDS[name], inputs, seed=1):
        try:
            accepts(TARGETS[name], data)
        except Exception as error:
            place = str(traceback.extract_tb(error.__traceback__)[-1])
            if place not in places:
                places.add(place)
                FOUND.mkdir(exist_ok=True)
                (FOUND / f"{name}-{len(places)}").write_bytes(data)
                print(f"{name}: {type(error).__name__}: {error}\n  {place}\n  {data[:200]!r}")
    return len(places)


def run_atheris(name: str, inputs: int) -> int:
    """Run a target under atheris, which ends the process at the first finding; return 0 or 1."""
    from fuzz.targets import SEEDS

    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for at, seed in enumerate(SEEDS[name]):
            (Path(corpus) / str(at)).write_bytes(seed)
        command = [
            sys.executable, __file__, "--guided", name, corpus, f"-runs={inputs}", "-seed=1",
            "-rss_limit_mb=4096", "-timeout=60", "-max_len=20000",
            f"-artifact_prefix={FOUND}/{name}-",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(
            f"{name}:", *done.stdout.splitlines()[-15:], *done.stderr.splitlines()[-15:], sep="\n  "
        )
    return int(done.returncode != 0)


def guided(name: str, options: list[str]) -> None:
    """Be the process that atheris runs a target in."""
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
