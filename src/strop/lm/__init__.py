"""Language models: prompts to texts. ``load`` makes one from a short name or a function.

A new provider is one more file here, on ``ServiceLM`` (service.py) if it is called over HTTP, else
on ``BaseLM`` (runner.py), and its name here. Importing this package loads no client library; each
family is imported when it is used. No prompt is written here, and no query is read from a reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from strop.common.specs import check_object, make, suggestion
from strop.errors import BadInput
from strop.lm.base import LM, Failure, Replies, Reply, Request, Usage
from strop.lm.prices import Price, count_tokens, price

__all__ = [
    "LM", "Failure", "Price", "Replies", "Reply", "Request", "Usage", "count_tokens", "load",
    "price",
]  # fmt: skip

_FORMS = "openai:<model>, anthropic:<model>, llama:<file.gguf>, smollm2"


def load(spec: str | LM | Callable[[str], str], **options: Any) -> LM:
    """Make a language model.

    ``spec`` is one of

    - ``openai:<model>``: OpenAI, or with ``base_url`` any server that speaks its protocol;
    - ``anthropic:<model>``: Anthropic, or Amazon Bedrock with ``bedrock=True``;
    - ``llama:<file.gguf>``: a model file, run in this process;
    - ``smollm2``: SmolLM2-135M-Instruct from a package, run in this process;
    - a function of a prompt that returns a text;
    - a language model, which is returned unchanged.

    ``options`` belong to the family; ``load(lm.name, **lm.options)`` makes ``lm`` again. Keys
    come from the environment and are no options.
    """
    if isinstance(spec, str):
        return make(_family(spec), spec, options)
    if hasattr(spec, "complete"):
        check_object(spec, "a language model", ("name", "options", "host"), options)
        return cast(LM, spec)
    if not callable(spec):
        raise BadInput(f"{spec!r} is not a language model: give {_FORMS} or a function")
    from strop.lm.function import CallableLM

    return CallableLM(spec, **options)


def _family(spec: str) -> Callable[..., LM]:
    prefix, _, model = spec.partition(":")
    if prefix == "openai" and model:
        from strop.lm.openai import OpenAILM

        return OpenAILM
    if prefix == "anthropic" and model:
        from strop.lm.anthropic import AnthropicLM

        return AnthropicLM
    if spec == "smollm2" or (prefix == "llama" and model):
        from strop.lm.llama import LlamaLM

        return LlamaLM
    if prefix == "callable":
        raise BadInput(f"{spec} is a function, which cannot be loaded by name: pass it itself")
    hint = suggestion(prefix, ["openai", "anthropic", "llama", "smollm2"])
    raise BadInput(f"unknown language model {spec!r}.{hint} Known: {_FORMS}")
