"""OpenAI, and any server that speaks its protocol: vLLM, llama.cpp, Ollama, OpenRouter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from strop.errors import BadInput
from strop.lm import forms
from strop.lm.base import Answer, CallFailed, Request
from strop.lm.gate import Clock, Steps
from strop.lm.service import ServiceLM

PREFIX = "openai:"
_OPENAI = "https://api.openai.com"
_TOKEN_NAMES = (forms.NEW_TOKENS, forms.OLD_TOKENS)


class OpenAILM(ServiceLM):
    """``POST {base_url}/chat/completions``, or ``/completions`` with ``completion=True``.

    ``base_url`` is by default that of the variable OPENAI_BASE_URL, else OpenAI's. The key
    comes from STROP_API_KEY or OPENAI_API_KEY and is kept nowhere; servers on one's own machine
    need none. ``completion`` sends one text to be continued, which small models do better.
    ``max_tokens_name`` is how the server calls the limit on tokens, found out if not given. The
    other options are those of ``ServiceLM``.
    """

    package = "openai"
    extra_name = "openai"
    key_variables = ("STROP_API_KEY", "OPENAI_API_KEY")

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
        url = base_url or os.environ.get("OPENAI_BASE_URL") or f"{_OPENAI}/v1"
        if max_tokens_name not in (None, *_TOKEN_NAMES):
            what = " or ".join(_TOKEN_NAMES)
            raise BadInput(f"max_tokens_name is {max_tokens_name!r}; it must be {what}")
        given = {
            "base_url": None if url == f"{_OPENAI}/v1" else url,
            "completion": completion,
            "max_tokens_name": max_tokens_name,
        }
        self._configure(
            name, url, given, concurrency=concurrency, retries=retries, timeout=timeout,
            backoff=backoff, extra=extra, clock=clock,
        )  # fmt: skip
        self.completion = completion
        known = forms.NEW_TOKENS if self.url.startswith(_OPENAI) else forms.OLD_TOKENS
        self._tokens = max_tokens_name or known
        self._tokens_fixed = max_tokens_name is not None

    @property
    def endpoint(self) -> str:
        """The path that requests go to, as batches name it."""
        return forms.COMPLETIONS if self.completion else forms.CHAT

    def client(self, timeout: float | None = None) -> Any:
        """OpenAI's client."""
        from openai import OpenAI

        return OpenAI(
            api_key=self.key(_OPENAI),
            base_url=self.url,
            timeout=timeout or self.timeout,
            max_retries=0,
        )

    def lean_headers(self) -> dict[str, str] | None:
        """The key, as OpenAI wants it."""
        return {"Authorization": f"Bearer {self.key(_OPENAI)}", **_organization()}

    def body(self, request: Request, tokens: str | None = None) -> dict[str, Any]:
        """What is sent for a request."""
        if self.completion:
            return forms.completion_body(request, self.model, self.extra)
        return forms.chat_body(request, self.model, tokens or self._tokens, self.extra)

    def _answer(self, request: Request) -> Steps[Answer]:
        name = self._tokens
        try:
            return (yield from self._ask(self.body(request, name)))
        except CallFailed as failure:
            # Only a refusal that names the field is about the field.
            if failure.passing or self._tokens_fixed or self.completion or name not in str(failure):
                raise
        other = next(other for other in _TOKEN_NAMES if other != name)
        answer = yield from self._ask(self.body(request, other))
        self._tokens = other
        return answer

    def _ask(self, body: dict[str, Any]) -> Steps[Answer]:
        answer = yield from self._exchange(self.endpoint.removeprefix("/v1"), body)
        if isinstance(answer, dict) and "error" in answer and not answer.get("choices"):
            code = answer["error"].get("code") if isinstance(answer["error"], dict) else None
            raise self.refused(code if isinstance(code, int) else 500, answer, {})
        return forms.read_openai(answer, self.host)


def _organization() -> dict[str, str]:
    """What OpenAI's client also tells, if the environment says so."""
    names = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
    return {name: os.environ[of] for name, of in names.items() if os.environ.get(of)}
