"""OpenAI, and any server that speaks its protocol: vLLM, llama.cpp, Ollama, OpenRouter."""

from __future__ import annotations

import os
from typing import Any

from strop.common.http import Client
from strop.common.retries import CallFailed
from strop.lm.base import Answer, Body, Fields, Request, Usage, read_answer, text_of, token_count
from strop.lm.service import ServiceLM

NEW_TOKENS, OLD_TOKENS = "max_completion_tokens", "max_tokens"
"""OpenAI's newer models refuse the old name; many other servers know only the old name."""
_OPENAI = "https://api.openai.com/v1"
_ACCOUNT = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}


class OpenAILM(ServiceLM):
    """``POST {base_url}/chat/completions``, or ``/completions`` with ``completion=True``.

    ``base_url`` is by default that of the variable OPENAI_BASE_URL, else OpenAI's. The key
    comes from STROP_API_KEY or OPENAI_API_KEY and is kept nowhere; servers on one's own machine
    need none. ``completion`` sends one text to continue, which small models do better. The
    other options are those of ``ServiceLM``.
    """

    key_variables = ("STROP_API_KEY", "OPENAI_API_KEY")
    vendor = _OPENAI

    def __init__(
        self, name: str, *, base_url: str | None = None, completion: bool = False, **shared: Any
    ) -> None:
        url = base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI
        super().__init__(name, url, {"completion": completion}, **shared)
        self.completion = completion
        self.endpoint = "/v1/completions" if completion else "/v1/chat/completions"
        self.tokens_name = NEW_TOKENS if self.at_vendor and not completion else OLD_TOKENS

    def headers(self) -> dict[str, str]:
        """Return the key, and organization and project if they are set in the environment."""
        key = self.key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        account = {name: os.environ.get(variable) for name, variable in _ACCOUNT.items()}
        return headers | {name: value for name, value in account.items() if value}

    def body(self, request: Request) -> Body:
        """Return the JSON body of a request."""
        return openai_body(request, self.model, self.extra, self.completion, self.tokens_name)

    def answer(self, client: Client, request: Request) -> Answer:
        """Make one call; a second one if the service refuses the name of the token limit."""
        body = self.body(request)
        try:
            return self._call(client, body)
        except CallFailed as failure:
            # Only a refusal, which costs nothing, and only one that names the field as the cause.
            (name,) = {NEW_TOKENS, OLD_TOKENS} & body.keys()
            if name not in failure.fields or self.completion:
                raise
        other = OLD_TOKENS if name == NEW_TOKENS else NEW_TOKENS
        body[other] = body.pop(name)
        answer = self._call(client, body)
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


def openai_body(
    request: Request, model: str, extra: Body, completion: bool, tokens_name: str = OLD_TOKENS
) -> Body:
    """Return the body of a chat completion, or of an older completion, which continues a text."""
    body: Body = {"model": model}
    if completion:
        body["prompt"] = request.prompt
    else:
        system = [{"role": "system", "content": request.system}] if request.system else []
        body["messages"] = [*system, {"role": "user", "content": request.user}]
    body[tokens_name] = request.max_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.stop:
        body["stop"] = list(request.stop)
    return body | extra


def read_openai(body: Any, host: str) -> Answer:
    """Read a chat completion or a completion; ``CallFailed`` if it has no text."""
    return read_answer(host, body, _fields, _usage)


def _fields(body: Any) -> Fields:
    choice = body["choices"][0]
    message = choice.get("message")
    text = text_of(choice["text"] if message is None else message.get("content"))
    reason, refusal = choice.get("finish_reason"), (message or {}).get("refusal")
    declined = reason == "content_filter" or (refusal and not text)
    return text, reason == "length", str(refusal or reason) if declined else None


def _usage(usage: Any) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        token_count(usage, "prompt_tokens"),
        token_count(usage, "completion_tokens"),
        token_count(details, "cached_tokens") or token_count(usage, "prompt_cache_hit_tokens"),
        token_count(details, "cache_write_tokens"),
    )
