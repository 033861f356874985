"""Anthropic's models, from Anthropic itself or through Amazon Bedrock."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from strop.errors import BadInput, MissingExtra
from strop.lm import forms
from strop.lm.base import Answer, Request
from strop.lm.gate import Clock, Steps
from strop.lm.service import ServiceLM

PREFIX = "anthropic:"
_ANTHROPIC = "https://api.anthropic.com"
_VERSION = "2023-06-01"


class AnthropicLM(ServiceLM):
    """``POST {base_url}/v1/messages``, with the common parts of prompts marked for caching.

    ``base_url`` is by default that of the variable ANTHROPIC_BASE_URL, else Anthropic's. The
    key comes from ANTHROPIC_API_KEY or STROP_API_KEY and is kept nowhere. With ``bedrock=True``
    Amazon's service is called instead, in ``region`` (by default that of AWS_REGION), with the
    credentials that Amazon's tools use. The other options are those of ``ServiceLM``.
    """

    package = "anthropic"
    extra_name = "anthropic"
    key_variables: tuple[str, ...] = ("ANTHROPIC_API_KEY", "STROP_API_KEY")

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        bedrock: bool = False,
        region: str | None = None,
        concurrency: int = 16,
        retries: int = 8,
        timeout: float = 120.0,
        backoff: float = 0.5,
        extra: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if bedrock:
            self.extra_name = "bedrock"
            self.key_variables = ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "AWS_ACCESS_KEY_ID")
            variables = os.environ
            region = region or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
            if region is None:
                raise BadInput("bedrock needs a region; give region= or set AWS_REGION")
            vendor = f"https://bedrock-runtime.{region}.amazonaws.com"
            url = base_url or vendor
        elif region is not None:
            raise BadInput("region is only for bedrock=True")
        else:
            vendor = _ANTHROPIC
            url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or vendor
            if isinstance(url, str):  # people give it as they do for OpenAI's protocol
                url = url.rstrip("/").removesuffix("/v1")
        given = {
            "base_url": None if url == vendor else url,
            "bedrock": bedrock,
            "region": region,
        }
        self._configure(
            name, url, given, concurrency=concurrency, retries=retries, timeout=timeout,
            backoff=backoff, extra=extra, clock=clock,
        )  # fmt: skip
        self.bedrock, self._region = bedrock, region
        signed = bedrock and not os.environ.get("AWS_BEARER_TOKEN_BEDROCK")
        if signed and importlib.util.find_spec("boto3") is None:
            raise MissingExtra(f"{name} with bedrock=True", self.extra_name)

    def client(self, timeout: float | None = None) -> Any:
        """Anthropic's client."""
        limits: dict[str, Any] = {"timeout": timeout or self.timeout, "max_retries": 0}
        if self.bedrock:
            from anthropic import AnthropicBedrock

            return AnthropicBedrock(aws_region=self._region, base_url=self.url, **limits)
        from anthropic import Anthropic

        return Anthropic(api_key=self.key(_ANTHROPIC), base_url=self.url, **limits)

    def lean_headers(self) -> dict[str, str] | None:
        """The key and the version of the protocol; Amazon wants each call signed."""
        if self.bedrock:
            return None
        return {"x-api-key": self.key(_ANTHROPIC), "anthropic-version": _VERSION}

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent for a request."""
        return forms.messages_body(request, self.model, self.extra)

    def _answer(self, request: Request) -> Steps[Answer]:
        answer = yield from self._exchange(forms.MESSAGES, self.body(request))
        return forms.read_anthropic(answer, self.host)
