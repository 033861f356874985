"""The documentation of the running interpreter's standard library, as documents.

A corpus every Python user already has: thousands of short, real texts, many of them easy
to confuse (``shutil.copy``, ``copy2``, ``copyfile``). Used by ``strop demo``.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator

from strop.types import Document

# Left out: duplicates by platform (posixpath has the functions of os.path), modules with side
# effects on import (antigravity opens a browser), 100 codecs with the same text, test suites,
# applications and packages that are being removed from the library.
_SKIPPED = frozenset(
    "__main__ antigravity distutils encodings ensurepip genericpath idlelib lib2to3 nt ntpath"
    " opcode posix posixpath pydoc_data sre_compile sre_constants sre_parse test tests this"
    " turtledemo".split()
)
_FEWEST_WORDS = 3
_PLAIN = (str, bytes, int, float, bool)
_ROUTINES = (
    types.FunctionType,
    types.MethodType,  # random.choice is a method of a hidden generator
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


# The chapters Built-in Functions to Concurrent Execution of the library reference, in its order,
# without the modules for terminals.
EVERYDAY = """
    builtins string re difflib textwrap unicodedata stringprep struct codecs datetime zoneinfo
    calendar collections heapq bisect array weakref types copy pprint reprlib enum graphlib numbers
    math cmath decimal fractions random statistics itertools functools operator pathlib os
    fileinput stat filecmp tempfile glob fnmatch linecache shutil pickle copyreg shelve marshal dbm
    sqlite3 zlib gzip bz2 lzma zipfile tarfile csv configparser tomllib netrc plistlib hashlib hmac
    secrets io time argparse getopt logging getpass platform errno ctypes threading multiprocessing
    concurrent subprocess sched queue contextvars
""".split()


def read_stdlib(modules: Iterable[str] = sys.stdlib_module_names) -> list[Document]:
    """Return one document for each public module, class, function and method with a docstring.

    The id is the dotted name a user would type: ``shutil.copy2``, ``str.split``,
    ``pathlib.Path.mkdir``. An object reachable under several names appears once, under the
    name of the module it says it belongs to, else the shortest.
    """
    names: dict[int, tuple[tuple[bool, bool, int, str], str, object]] = {}
    documents: dict[str, Document] = {}
    # All are imported first: a submodule (curses.has_key) can hide a function of its package.
    for module_name, module in list(_modules(modules)):
        _put(documents, module_name, module)
        for name, value in _public(module, module_name):
            path = name if module_name == "builtins" else f"{module_name}.{name}"
            home = getattr(value, "__module__", None) or module_name
            # OSError before EnvironmentError.
            is_original_name = name == getattr(value, "__name__", name)
            rank = (not is_original_name, home != module_name, path.count("."), path)
            if id(value) not in names or rank < names[id(value)][0]:
                names[id(value)] = (rank, path, value)
    for _, path, value in sorted(names.values(), key=lambda item: item[1]):
        _put(documents, path, value)
        if isinstance(value, type):
            for name, member in vars(value).items():
                routine = getattr(member, "__func__", member)  # unwraps class and static methods
                if not name.startswith("_") and isinstance(routine, (*_ROUTINES, property)):
                    _put(documents, f"{path}.{name}", routine)
    return sorted(documents.values(), key=lambda document: document.id)


def _modules(names: Iterable[str]) -> Iterator[tuple[str, types.ModuleType]]:
    """Import and yield the public modules among ``names``, with their public submodules."""
    waiting = sorted({*names, *(["os.path"] if "os" in names else [])}, reverse=True)
    while waiting:
        name = waiting.pop()
        if any(part in _SKIPPED or part.startswith("_") for part in name.split(".")):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecated modules announce themselves
                module = importlib.import_module(name)
        except Exception:  # not built for this machine (tkinter, dbm.gnu, winreg, ...)
            continue
        yield name, module
        if hasattr(module, "__path__"):
            below = (submodule.name for submodule in pkgutil.iter_modules(module.__path__))
            waiting += sorted((f"{name}.{part}" for part in below), reverse=True)


def _public(module: types.ModuleType, module_name: str) -> Iterator[tuple[str, object]]:
    listed = getattr(module, "__all__", None)
    for name in listed if listed is not None else list(vars(module)):
        value = getattr(module, name, None)
        if name.startswith("_") or not isinstance(value, (type, *_ROUTINES)):
            continue
        home = getattr(value, "__module__", None) or module_name
        if listed is None and home not in (module_name, f"_{module_name}"):
            continue  # imported from elsewhere (bisect's functions are written in _bisect)
        yield name, value


def _put(documents: dict[str, Document], path: str, value: object) -> None:
    """Add the document of ``value`` under ``path`` if its docstring has enough words."""
    text = inspect.getdoc(value) if not isinstance(value, type) else value.__dict__.get("__doc__")
    text = inspect.cleandoc(text) if isinstance(text, str) else ""
    words = re.findall(r"[^\W\d_]+", text)
    if len(words) < _FEWEST_WORDS or text.startswith("Alias for field number"):
        return
    kind = "module" if isinstance(value, types.ModuleType) else "function"
    if isinstance(value, type):
        kind = "class"
    if kind == "function":
        with contextlib.suppress(Exception):  # many built-ins have none; some cannot be read
            text = f"{path}{_signature(value)}\n\n{text}"
    documents[path] = Document(id=path, text=text, title=path, metadata={"kind": kind})


def _signature(value: object) -> str:
    """Return a signature with its plain defaults only.

    Other defaults show addresses, local paths, or (``cgi.print_environ``) the environment.
    """
    signature = inspect.signature(value)  # type: ignore[arg-type]
    parameters = [
        parameter
        if parameter.default in (parameter.empty, None) or type(parameter.default) in _PLAIN
        else parameter.replace(default=...)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters)).replace("Ellipsis", "...")
