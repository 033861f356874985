"""Versions and licences of everything that is installed: ``make audit``.

Fails on a licence that is unknown or not on the list of permissive ones. Known vulnerabilities are
looked up by pip-audit where it is installed and its service can be reached.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions

PERMISSIVE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Unlicense|Zlib|HPND|CC0|Public Domain"
    r"|Boost|BSL-1|0BSD|NCSA|Blue ?Oak|FTL",
    re.IGNORECASE,
)
COPYLEFT = re.compile(r"GPL|MPL|Mozilla|EUPL|CDDL|Proprietary", re.IGNORECASE)
# Weak copyleft (MPL, LGPL), used unchanged: it asks nothing of programs that import the package.
# Of these the core brings certifi and tqdm; psycopg is the driver of the extra `postgres`. atheris
# (Apache-2.0), which `make fuzz` installs, declares none.
ALLOWED = {
    "atheris", "certifi", "hypothesis", "orjson", "pathspec", "psycopg", "psycopg-binary",
    "psycopg-pool", "pyterrier", "tqdm",
}  # fmt: skip


def licence_of(package: Distribution) -> str:
    """Return the licence that a package declares: expression, classifiers, or the text's start."""
    about = package.metadata
    classifiers = [
        line.rpartition(":: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License ::") and not line.endswith("OSI Approved")
    ]
    text = (about.get_all("License") or [""])[0].strip().splitlines()
    expressions = about.get_all("License-Expression") or []
    declared = [*expressions, ", ".join(classifiers), *text[:1]]
    return next((licence for licence in declared if licence), "")


def main() -> int:
    """Print name, version and licence of each package; return 1 if one is not permissive."""
    packages = {package.metadata["Name"]: package for package in distributions()}
    refused = []
    for name in sorted(packages.keys() - {"strop"}, key=str.lower):
        licence = licence_of(packages[name])
        print(f"{name:32}{packages[name].version:20}{licence[:60] or 'unknown'}")
        permissive = PERMISSIVE.search(licence) and not COPYLEFT.search(licence)
        if not permissive and name not in ALLOWED:
            refused.append(name)
    print(f"{len(packages):,} packages; licence unknown or not permissive: {refused or 'none'}")
    print(vulnerabilities())
    return int(bool(refused))


def vulnerabilities() -> str:
    """Return what pip-audit reports, or why it could not look."""
    command = shutil.which("pip-audit")
    if command is None:
        return "Vulnerabilities: not checked, pip-audit is not installed."
    try:
        done = subprocess.run([command, "--local"], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "Vulnerabilities: not checked, the service of pip-audit did not answer."
    if not done.stdout.strip() and done.returncode not in (0, 1):
        return "Vulnerabilities: not checked, the service of pip-audit cannot be reached."
    return done.stdout.strip() or "Vulnerabilities: none known."


if __name__ == "__main__":
    sys.exit(main())
