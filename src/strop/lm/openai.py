"""OpenAI, and any server that speaks its protocol: vLLM, llama.cpp, Ollama, OpenRouter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from strop.common.http import Client
from strop.common.retries import CallFailed, Clock
from strop.common.secrets import one_line
from strop.errors import BadInput
from strop.lm.base import (
    Answer,
    Body,
    Request,
    Usage,
    make_answer,
    no_reply,
    text_of,
    token_count,
)
from strop.lm.service import ServiceLM

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NEW_TOKENS, OLD_TOKENS = "max_completion_tokens", "max_tokens"
"""OpenAI's newer models refuse the old name; many other servers know only that."""
_OPENAI = "https://api.openai.com/v1"
_TOKEN_NAMES = (NEW_TOKENS, OLD_TOKENS)
_ACCOUNT = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}


class OpenAILM(ServiceLM):
    """``POST {base_url}/chat/completions``, or ``/completions`` with ``completion=True``.

    ``base_url`` is by default that of the variable OPENAI_BASE_URL, else OpenAI's. The key
    comes from STROP_API_KEY or OPENAI_API_KEY and is kept nowhere; servers on one's own machine
    need none. ``completion`` sends one text to be continued, which small models do better.
    ``max_tokens_name`` is how the server calls the limit on tokens, found out if not given. The
    other options are those of ``ServiceLM``.
    """

    key_variables = ("STROP_API_KEY", "OPENAI_API_KEY")
    vendor = _OPENAI

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        completion: bool = False,
        max_tokens_name: str | None = None,
        concurrency: int = 16,
        retries: int = 8,
        timeout: float = 120.0,
        backoff: float = 0.5,
        extra: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if max_tokens_name not in (None, *_TOKEN_NAMES):
            what = " or ".join(_TOKEN_NAMES)
            raise BadInput(f"max_tokens_name is {max_tokens_name!r}; it must be {what}")
        self._configure(
            name, base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI,
            {"completion": completion, "max_tokens_name": max_tokens_name},
            concurrency=concurrency, retries=retries, timeout=timeout, backoff=backoff,
            extra=extra, clock=clock,
        )  # fmt: skip
        self.completion = completion
        self.tokens_name = max_tokens_name or (NEW_TOKENS if self.at_vendor else OLD_TOKENS)
        self._tokens_fixed = max_tokens_name is not None

    @property
    def endpoint(self) -> str:
        """The path that requests go to, as batches name it."""
        return COMPLETIONS if self.completion else CHAT

    def headers(self) -> dict[str, str]:
        """The key, and whose account it is if the environment says so."""
        key = self.key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        account = {name: os.environ.get(variable) for name, variable in _ACCOUNT.items()}
        return headers | {name: value for name, value in account.items() if value}

    def body(self, request: Request, tokens_name: str | None = None) -> Body:
        """What is sent for a request."""
        if self.completion:
            return completion_body(request, self.model, self.extra)
        return chat_body(request, self.model, tokens_name or self.tokens_name, self.extra)

    def answer(self, client: Client, request: Request) -> Answer:
        """Make one call; a second one if the service refuses the name of the limit on tokens."""
        name = self.tokens_name
        try:
            return self._call(client, self.body(request, name))
        except CallFailed as failure:
            # Only a refusal, which costs nothing, and only one that names the field as the cause.
            if name not in failure.fields or self._tokens_fixed or self.completion:
                raise
        other = next(other for other in _TOKEN_NAMES if other != name)
        answer = self._call(client, self.body(request, other))
        self.tokens_name = other
        return answer

    def _call(self, client: Client, body: Body) -> Answer:
        reply = client.post(self.endpoint.removeprefix("/v1"), body)
        if isinstance(reply, dict) and "error" in reply and not reply.get("choices"):
            error = reply["error"]
            code = error.get("code") if isinstance(error, dict) else None
            status = code if type(code) is int and 400 <= code < 600 else 500
            raise client.refused(status, reply, {})
        return read_openai(reply, self.host)


def chat_body(request: Request, model: str, tokens_name: str, extra: Body) -> Body:
    """The body of OpenAI's chat completions."""
    messages = [{"role": "user", "content": request.user}]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    body: Body = {"model": model, "messages": messages, tokens_name: request.max_tokens}
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


def read_openai(body: Any, host: str) -> Answer:
    """What a chat completion or a completion says; ``CallFailed`` if it says nothing."""
    try:
        choice = body["choices"][0]
        message = choice.get("message")
        text = text_of(choice["text"] if message is None else message.get("content"))
        reason, refusal = choice.get("finish_reason"), (message or {}).get("refusal")
        usage = _usage(body.get("usage"))
        model = body.get("model")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise no_reply(host, body) from error
    if reason == "content_filter" or (refusal and not text):
        raise CallFailed(f"{host} declined to answer: {one_line(refusal or reason)}")
    return make_answer(host, text, reason == "length", model, usage)


def _usage(usage: Any) -> Usage | None:
    try:
        details = usage.get("prompt_tokens_details") or {}
        return Usage(
            token_count(usage, "prompt_tokens"),
            token_count(usage, "completion_tokens"),
            token_count(details, "cached_tokens") or token_count(usage, "prompt_cache_hit_tokens"),
            token_count(details, "cache_write_tokens"),
        )
    except (AttributeError, TypeError, ValueError):
        return None  # a reply is a reply, whatever it says of its size
