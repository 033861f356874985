"""The bodies of requests and replies, as OpenAI and as Anthropic write them."""

from __future__ import annotations

import math
from typing import Any

from strop.lm.base import Answer, CallFailed, Request, Usage, one_line, storable

Body = dict[str, Any]

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
NEW_TOKENS, OLD_TOKENS = "max_completion_tokens", "max_tokens"
"""OpenAI's newer models refuse the old name; many other servers know only that."""
_CACHE = {"type": "ephemeral"}


def chat_body(request: Request, model: str, tokens: str, extra: Body) -> Body:
    """The body of OpenAI's chat completions."""
    messages = [{"role": "user", "content": request.user}]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    body: Body = {"model": model, "messages": messages, tokens: request.max_tokens}
    return _sampled(body, request) | extra


def completion_body(request: Request, model: str, extra: Body) -> Body:
    """The body of OpenAI's older completions, which continue a text."""
    body = {"model": model, "prompt": request.prompt, OLD_TOKENS: request.max_tokens}
    return _sampled(body, request) | extra


def _sampled(body: Body, request: Request) -> Body:
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.stop:
        body["stop"] = list(request.stop)
    return body


def messages_body(request: Request, model: str, extra: Body) -> Body:
    """The body of Anthropic's messages, the system and the shared part marked for caching.

    Anthropic refuses blank blocks and blank stop sequences, so neither is sent.
    """
    if request.shared.strip() and request.rest.strip():
        content: list[Body] = [_block(request.shared, cached=True), _block(request.rest)]
    else:
        content = [_block(request.user, cached=bool(request.shared.strip()))]
    body: Body = {
        "model": model,
        "max_tokens": request.max_tokens,
        "messages": [{"role": "user", "content": content}],
    }
    if request.system.strip():
        body["system"] = [_block(request.system, cached=True)]
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if stop := [text for text in request.stop if text.strip()]:
        body["stop_sequences"] = stop
    return body | extra


def _block(text: str, cached: bool = False) -> Body:
    block: Body = {"type": "text", "text": text}
    return block | {"cache_control": _CACHE} if cached else block


def read_openai(body: Any, host: str) -> Answer:
    """What a chat completion or a completion says; ``CallFailed`` if it says nothing."""
    try:
        choice = body["choices"][0]
        message = choice.get("message")
        text = _text(choice["text"] if message is None else message.get("content"))
        reason, refusal = choice.get("finish_reason"), (message or {}).get("refusal")
        usage = body.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        counted = Usage(
            _count(usage, "prompt_tokens"),
            _count(usage, "completion_tokens"),
            _count(details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens"),
            _count(details, "cache_write_tokens"),
        )
        model = str(body.get("model") or "")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _garbled(host, body) from error
    if reason == "content_filter" or (refusal and not text):
        raise CallFailed(f"{host} declined to answer: {one_line(str(refusal or reason))}")
    return _answer(host, text, reason == "length", model, counted)


def read_anthropic(body: Any, host: str) -> Answer:
    """What a message says; ``CallFailed`` if it says nothing."""
    try:
        text = _text(body["content"])
        reason = body.get("stop_reason")
        usage = body.get("usage") or {}
        cached = _count(usage, "cache_read_input_tokens")
        written = _count(usage, "cache_creation_input_tokens")
        total = _count(usage, "input_tokens") + cached + written  # the first leaves out the others
        counted = Usage(total, _count(usage, "output_tokens"), cached, written)
        model = str(body.get("model") or "")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _garbled(host, body) from error
    if reason == "refusal":
        raise CallFailed(f"{host} declined to answer")
    cut = reason in ("max_tokens", "model_context_window_exceeded")
    return _answer(host, text, cut, model, counted)


def _answer(host: str, text: str, truncated: bool, model: str, usage: Usage) -> Answer:
    if not text.strip() and truncated:
        raise CallFailed(f"{host} used up its tokens without a word: allow it more (max_tokens)")
    if not text.strip():
        raise CallFailed(f"{host} sent an empty reply", garbled=True)
    return Answer(storable(text), truncated, storable(model), usage)


def _text(content: Any) -> str:
    """A text, or the texts of a list of blocks; thoughts are left out."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(block["text"] for block in content if block.get("type", "text") == "text")


def _count(usage: Body, name: str) -> int:
    number = usage.get(name)
    return int(number) if isinstance(number, int | float) and math.isfinite(number) else 0


def _garbled(host: str, body: Any) -> CallFailed:
    return CallFailed(f"{host} sent no reply but: {one_line(str(body))}", garbled=True)
