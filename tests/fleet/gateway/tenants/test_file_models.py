from __future__ import annotations

from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.config_models import BackendSettings, ModelSettings, PriceSettings
from argosy.fleet.gateway.file_models import FileModels
from argosy.fleet.gateway.service_parts import price_table

CONFIG = GatewayConfig(
    models=(
        ModelSettings(
            "m",
            (
                BackendSettings("http://127.0.0.1:1", api_key_env="UPSTREAM_KEY", model="org/m", region="eu"),
                BackendSettings("http://127.0.0.1:2", price=PriceSettings(2.0, 4.0, 1.0)),
            ),
            aliases=("x",),
            price=PriceSettings(1.0, 3.0),
        ),
        ModelSettings("n", (BackendSettings("http://127.0.0.1:3"),)),
    )
)


def test_every_backend_is_listed_with_its_price_and_no_secret() -> None:
    entries = FileModels(CONFIG, price_table(CONFIG)).models()
    assert [entry["model_name"] for entry in entries] == ["m", "m", "n"]
    assert entries[0]["litellm_params"] == {
        "model": "org/m",
        "api_base": "http://127.0.0.1:1",
        "api_key_env": "UPSTREAM_KEY",
        "weight": 1.0,
    }
    prices = ("input_cost_per_token", "cache_read_input_token_cost", "output_cost_per_token")
    found = [tuple(entry["model_info"][name] for name in prices) for entry in entries]
    assert found == [(1e-6, 1e-6, 3e-6), (2e-6, 1e-6, 4e-6), (0.0, 0.0, 0.0)]
    assert len({entry["model_info"]["id"] for entry in entries}) == 3
