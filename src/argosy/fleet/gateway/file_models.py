"""The models of the configuration file as the admin API lists them. They are changed in the file, which is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.prices import Price, PriceTable
from argosy.fleet.gateway.service_parts import backend_id


class FileModels:
    """The admin API's `ModelAdmin`. `config` and `prices` are replaced on a reload."""

    def __init__(self, config: GatewayConfig, prices: PriceTable) -> None:
        self.config, self.prices = config, prices

    def models(self) -> Sequence[Mapping[str, Any]]:
        """One entry per backend of a model, with LiteLLM's members. The names of secrets are told, never secrets."""
        return [
            {
                "model_name": model.name,
                "litellm_params": {
                    "model": backend.model or model.name,
                    "api_base": backend.url,
                    "api_key_env": backend.api_key_env,
                    "weight": backend.weight,
                },
                "model_info": {
                    "id": backend_id(model, backend),
                    "aliases": list(model.aliases),
                    "kind": backend.kind,
                    "region": backend.region or None,
                    "max_input_tokens": backend.max_model_len,
                    "fallbacks": list(model.fallbacks),
                    **_per_token(self.prices.price(model.name, backend_id(model, backend))),
                },
            }
            for model in self.config.models
            for backend in model.backends
        ]


def _per_token(price: Price) -> dict[str, float]:
    cached = price.cached_input_usd_per_million
    return {
        "input_cost_per_token": price.input_usd_per_million / 1e6,
        "output_cost_per_token": price.output_usd_per_million / 1e6,
        "cache_read_input_token_cost": (price.input_usd_per_million if cached is None else cached) / 1e6,
    }
