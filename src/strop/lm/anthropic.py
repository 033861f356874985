"""Anthropic's models, from Anthropic itself or through Amazon Bedrock."""

from __future__ import annotations

import importlib.util
import os
from typing import Any
from urllib.parse import quote

from strop.common.http import Client
from strop.errors import BadInput, MissingExtra
from strop.lm.base import Answer, Body, Fields, Request, Usage, read_answer, text_of, token_count
from strop.lm.service import ServiceLM

_ANTHROPIC = "https://api.anthropic.com"
_TOKEN = "AWS_BEARER_TOKEN_BEDROCK"


class AnthropicLM(ServiceLM):
    """``POST {base_url}/v1/messages``, with the common parts of prompts marked for caching.

    ``base_url`` is by default that of the variable ANTHROPIC_BASE_URL, else Anthropic's. The
    key comes from ANTHROPIC_API_KEY or STROP_API_KEY and is kept nowhere. With ``bedrock=True``
    Amazon's service is called instead, in ``region`` (by default that of AWS_REGION), with the
    token in AWS_BEARER_TOKEN_BEDROCK or the credentials that Amazon's tools use. The other options
    are those of ``ServiceLM``.
    """

    key_variables: tuple[str, ...] = ("ANTHROPIC_API_KEY", "STROP_API_KEY")
    vendor = _ANTHROPIC

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        bedrock: bool = False,
        region: str | None = None,
        **shared: Any,
    ) -> None:
        url: Any = base_url
        if bedrock:
            self.key_variables = (_TOKEN, "AWS_PROFILE", "AWS_ACCESS_KEY_ID")
            region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            if region is None:
                raise BadInput("bedrock needs a region; give region= or set AWS_REGION")
            self.vendor = f"https://bedrock-runtime.{region}.amazonaws.com"
            if not os.environ.get(_TOKEN) and importlib.util.find_spec("botocore") is None:
                raise MissingExtra(f"{name} with bedrock=True", "bedrock")
        elif region is not None:
            raise BadInput("region is only for bedrock=True")
        else:
            url = base_url or os.environ.get("ANTHROPIC_BASE_URL")
            if isinstance(url, str):  # people give it as they do for OpenAI's protocol
                url = url.rstrip("/").removesuffix("/v1")
        own_options = {"bedrock": bedrock, "region": region}
        super().__init__(name, url or self.vendor, own_options, **shared)
        self.bedrock, self._region = bedrock, region

    def headers(self) -> dict[str, str]:
        """Return the key and the version of the protocol; Bedrock needs a token or a signature."""
        if self.bedrock:
            return {"Authorization": f"Bearer {self.key()}"} if os.environ.get(_TOKEN) else {}
        key = self.key()
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    def body(self, request: Request) -> Body:
        """Return the JSON body of a request; system and shared part are marked for caching.

        Anthropic refuses blank blocks and blank stop sequences, so neither is sent.
        """
        if request.shared.strip() and request.rest.strip():
            content: list[Body] = [_block(request.shared, cached=True), _block(request.rest)]
        else:
            content = [_block(request.user, cached=bool(request.shared.strip()))]
        body: Body = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "messages": [{"role": "user", "content": content}],
        }
        if request.system.strip():
            body["system"] = [_block(request.system, cached=True)]
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if stop := [text for text in request.stop if text.strip()]:
            body["stop_sequences"] = stop
        return body | self.extra

    def answer(self, client: Client, request: Request) -> Answer:
        """Make one call."""
        body = self.body(request)
        if not self.bedrock:
            return read_anthropic(client.post("/v1/messages", body), self.host)
        path = f"/model/{quote(body.pop('model'), safe=':;')}/invoke"
        content = client.encoded({"anthropic_version": "bedrock-2023-05-31", **body})
        signature = {} if os.environ.get(_TOKEN) else self._signed(client.url + path, content)
        data = client.send("POST", path, content=content, headers=signature)
        return read_anthropic(client.parsed(data), self.host)

    def _signed(self, url: str, content: bytes) -> dict[str, str]:
        """Return the headers that sign a call with the credentials of Amazon's tools."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.session import get_session

        credentials = get_session().get_credentials()
        if credentials is None:
            raise BadInput(f"bedrock needs credentials; set {' or '.join(self.key_variables)}")
        request = AWSRequest("POST", url, {"Content-Type": "application/json"}, content)
        SigV4Auth(credentials.get_frozen_credentials(), "bedrock", self._region).add_auth(request)
        return dict(request.headers.items())


def _block(text: str, cached: bool = False) -> Body:
    block: Body = {"type": "text", "text": text}
    return block | {"cache_control": {"type": "ephemeral"}} if cached else block


def read_anthropic(body: Any, host: str) -> Answer:
    """Read a message; ``CallFailed`` if it has no text."""
    return read_answer(host, body, _fields, _usage)


def _fields(body: Any) -> Fields:
    reason = body.get("stop_reason")
    truncated = reason in ("max_tokens", "model_context_window_exceeded")
    return text_of(body["content"]), truncated, reason if reason == "refusal" else None


def _usage(usage: Any) -> Usage:
    cached = token_count(usage, "cache_read_input_tokens")
    written = token_count(usage, "cache_creation_input_tokens")
    total = token_count(usage, "input_tokens") + cached + written  # input_tokens excludes both
    return Usage(total, token_count(usage, "output_tokens"), cached, written)
