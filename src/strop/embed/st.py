"""Transformer models on this machine, through the sentence-transformers library."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from strop.common.specs import check_choice, check_kinds, check_whole, differing
from strop.embed.base import BaseEmbedder
from strop.embed.presets import PRESETS, TASKS, Pooling, Preset
from strop.errors import BadInput, MissingExtra, StropError, pip_install
from strop.types import Kind

PREFIX = "st:"
_DTYPES = ("auto", "float32", "float16", "bfloat16")
HASH_WHOLE_BYTES = 64 << 20
"""Weight files up to this size are hashed completely, larger ones in samples."""
SAMPLE, _SAMPLES = 1 << 16, 256


class SentenceTransformerEmbedder(BaseEmbedder):
    """A model from a folder or the model hub, or a preset.

    ``prompts`` are {"query": …, "document": …}; by default those of the preset or of the model.
    ``max_length`` counts tokens. ``dtype`` is by default that of the preset, else "float32"; "auto"
    is that of the weights. ``trust_remote_code`` runs code that comes with the model. ``path`` and
    ``task`` belong to presets.
    """

    # The revision identifies the weights, the prompt is part of every cache key, and the other
    # options change only the speed.
    unkeyed_options = frozenset({"batch_size", "device", "path", "prompts", "revision", "task"})

    def __init__(
        self,
        name: str,
        *,
        prompts: Mapping[str, str] | None = None,
        max_length: int | None = None,
        pooling: Pooling | None = None,
        dtype: str | None = None,
        device: str | None = None,
        batch_size: int = 32,
        trust_remote_code: bool = False,
        revision: str | None = None,
        path: str | None = None,
        task: str | None = None,
    ) -> None:
        options = {
            "prompts": dict(prompts) if prompts is not None else None, "max_length": max_length,
            "pooling": pooling, "dtype": dtype, "device": device, "batch_size": batch_size,
            "trust_remote_code": trust_remote_code, "revision": revision,
            "path": str(path) if path is not None else None, "task": task,
        }  # fmt: skip
        self.options = differing(options, {"batch_size": 32, "trust_remote_code": False})
        self.name = name
        preset = PRESETS.get(name)
        _check(name, preset, self.options)
        source = str(path or (preset.model if preset else name.removeprefix(PREFIX)))
        model = _load(
            source, name, dtype or (preset.dtype if preset else "float32"),
            device=device, trust_remote_code=trust_remote_code, revision=revision,
        )  # fmt: skip
        if preset:
            _apply(preset, model)
        if pooling:
            _pool(model, pooling)
        if max_length := max_length or (preset.max_length if preset else None):
            limit = _positions(model[0].auto_model)
            if limit and max_length > limit:
                raise BadInput(f"{name} has {limit} positions: max_length={max_length} is too long")
            model.max_seq_length = max_length
        self._prompts = _prompts(model, preset, prompts, task)
        self._model = model
        self._batch_size = batch_size
        # Tokenizers change their truncation and padding for each call: one at a time.
        self._lock = threading.Lock()
        # Newer versions of the library have the shorter name.
        dimension = getattr(model, "get_embedding_dimension", None)
        self._dim = int((dimension or model.get_sentence_embedding_dimension)())
        self.window = model.max_seq_length
        self.revision = _revision(source, revision)

    def prompt(self, kind: Kind) -> str:
        """The text put before an input of this kind, "" if none."""
        return self._prompts[kind]

    def _vectors(self, texts: list[str], kind: Kind) -> Any:
        # The two functions differ for models with separate encoders for queries and documents.
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        with self._lock:
            tensor = encode(
                texts,
                prompt=self._prompts[kind],
                batch_size=self._batch_size,
                show_progress_bar=False,
                convert_to_tensor=True,
            )
        return tensor.float().cpu().numpy()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has, including those after the model's limit."""
        if not texts:
            return []
        with self._lock:
            tokens = self._model.tokenizer(
                list(texts), add_special_tokens=False, truncation=False, verbose=False
            )
        return [len(ids) for ids in tokens["input_ids"]]


def _positions(transformer: Any) -> int | None:
    """Return how many tokens the model has positions for, None if unknown."""
    limit: int | None = getattr(transformer.config, "max_position_embeddings", None)
    embeddings = getattr(transformer, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    # RoBERTa and similar models count positions from the one after that of padding.
    return limit if limit is None or padding is None else limit - padding - 1


def _check(name: str, preset: Preset | None, options: Mapping[str, Any]) -> None:
    check_kinds("prompts", options.get("prompts", {}))
    check_choice("dtype", options.get("dtype", "auto"), _DTYPES)
    check_choice("pooling", options.get("pooling", "mean"), get_args(Pooling))
    check_whole(
        batch_size=(options.get("batch_size", 1), 1), max_length=(options.get("max_length", 1), 1)
    )
    if "task" in options and not (preset and "{task}" in preset.query_prompt):
        raise BadInput(f"{name} takes no task; give prompts={{'query': …}} instead")
    if "path" in options and not preset:
        raise BadInput(f"path belongs to presets; write '{PREFIX}{options['path']}'")


def _load(source: str, name: str, dtype: str, **options: Any) -> Any:
    """Return the SentenceTransformer model of a folder or hub id."""
    if importlib.util.find_spec("sentence_transformers") is None:
        raise MissingExtra(f"the embedder {name!r}", "st")
    looks_local = source.startswith((".", "/", "~", "\\")) or source.count("/") > 1
    path = Path(source).expanduser()
    if path.exists():
        source = str(path)
    elif looks_local:
        raise BadInput(f"{name}: there is no folder {source}")
    from sentence_transformers import SentenceTransformer

    if not path.exists():
        trouble = _hub_trouble(source, options["revision"])
        options["local_files_only"] = trouble is not None
    try:
        with _quiet():
            return SentenceTransformer(source, model_kwargs={"dtype": dtype}, **options)
    except (OSError, ValueError) as error:
        text = str(error).strip() or type(error).__name__
        reason = f"{source} cannot be loaded as a model: {text.splitlines()[0]}"
        if isinstance(error, OSError) and not path.exists():
            reason = (
                f"the model {source} was not found on this machine and could not be "
                f"downloaded ({trouble or text}). Download it where there is a connection and "
                f"write '{PREFIX}/path/to/folder' (for a preset, path='/path/to/folder'), or "
                "point HF_HOME at a cache that has it"
            )
        elif "trust_remote_code" in str(error):
            reason = (
                f"the model {source} brings code of its own that must run to load it. "
                "If you trust its authors, pass trust_remote_code=True"
            )
        raise StropError(f"{name}: {reason}") from error


def _hub_trouble(source: str, revision: str | None) -> str | None:
    """Return why the model hub cannot be reached, None if it can.

    Makes one request, which fails at once: the loaders would retry for half a minute.
    """
    from huggingface_hub import model_info

    try:
        model_info(source, revision=revision, timeout=10)
    except Exception as error:  # depends on the installed HTTP library
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"[:200]
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars while weights load."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _apply(preset: Preset, model: Any) -> None:
    _pool(model, preset.pooling, include_prompt=preset.pool_prompt)
    tokenizer = model.tokenizer
    tokenizer.padding_side = preset.padding_side
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if preset.end_token:
        _end_with(tokenizer, preset.end_token, preset.name)
    if preset.bidirectional:
        _make_bidirectional(model[0].auto_model, preset.name)


def _pool(model: Any, pooling: Pooling, *, include_prompt: bool | None = None) -> None:
    """Replace the pooling; ``include_prompt`` is that of the old pooling, unless given."""
    for i, module in enumerate(model):
        if type(module).__name__ == "Pooling":
            width = model[0].auto_model.config.hidden_size
            if include_prompt is None:
                include_prompt = module.include_prompt
            # The module of the class differs between versions of the library: take the class of
            # the loaded model.
            model[i] = type(module)(width, pooling_mode=pooling, include_prompt=include_prompt)
            return
    raise BadInput(f"this model has no pooling step that {pooling!r} could replace")


def _end_with(tokenizer: Any, token: str, name: str) -> None:
    """Make the tokenizer put ``token`` after each text, within the length limit."""
    end = tokenizer.convert_tokens_to_ids(token)
    if end is None or end == tokenizer.unk_token_id:
        raise StropError(f"{name}: the tokenizer has no token {token!r}; is it another model's?")
    with_specials = tokenizer("a")["input_ids"]
    if with_specials[-1] == end:
        return
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    prefix_tokens = tokenizer.convert_ids_to_tokens(
        with_specials[: len(with_specials) - len(plain)]
    )
    from tokenizers.processors import TemplateProcessing

    ids = [(piece, tokenizer.convert_tokens_to_ids(piece)) for piece in (*prefix_tokens, token)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=[*prefix_tokens, "$A", token], special_tokens=list(dict.fromkeys(ids))
    )


def _make_bidirectional(transformer: Any, name: str) -> None:
    """Let every token attend to every other, and check that they do."""
    import torch

    transformer.config.is_causal = False
    # Masks of a sliding window are always causal; texts are cut before they fill one.
    transformer.config.sliding_window = None
    for module in transformer.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    ids = torch.tensor([[1, 1, 0], [1, 2, 0]], device=transformer.device)
    padded = torch.tensor([[1, 1, 0], [1, 1, 0]], device=transformer.device)
    with torch.inference_mode():
        first = [
            transformer(input_ids=ids[:, :n], attention_mask=padded[:, :n]).last_hidden_state[:, 0]
            for n in (2, 3)
        ]
    if any(torch.allclose(states[0], states[1]) for states in first):
        raise StropError(
            f"{name} needs attention that looks both ways, which the installed transformers "
            f"cannot switch on: {pip_install('transformers>=5')}"
        )


def _prompts(
    model: Any, preset: Preset | None, given_prompts: Mapping[str, str] | None, task: str | None
) -> dict[Kind, str]:
    if given_prompts is not None:
        return {
            "query": given_prompts.get("query", ""),
            "document": given_prompts.get("document", ""),
        }
    if preset:
        wording = TASKS.get(task, task) if task is not None else preset.task
        query = preset.query_prompt.replace("{task}", wording)
        return {"query": query, "document": preset.document_prompt}
    stored = getattr(model, "prompts", None) or {}
    document = stored.get("document") or stored.get("passage") or stored.get("corpus")
    return {"query": stored.get("query") or "", "document": document or ""}


def _revision(source: str, revision: str | None) -> str:
    """Return the commit of a model from the hub, or a hash of the files of a folder."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(source, "config.json", revision=revision)
        return Path(config).parent.name if isinstance(config, str) else ""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix in {".json", ".txt", ".model", ".safetensors", ".bin"}:
            digest.update(f"{file.relative_to(folder).as_posix()}\0".encode())
            digest.update(fingerprint(file))
    return digest.hexdigest()[:32]


def fingerprint(file: Path) -> bytes:
    """Return a hash of the content of a file; for a large file, of its size and 256 samples.

    Training changes weights everywhere, so samples detect it, in a second instead of a minute.
    """
    size = file.stat().st_size
    if size <= HASH_WHOLE_BYTES:
        return hashlib.sha256(file.read_bytes()).digest()
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for i in range(_SAMPLES):
            stream.seek(i * (size - SAMPLE) // (_SAMPLES - 1))
            digest.update(stream.read(SAMPLE))
    return digest.digest()
