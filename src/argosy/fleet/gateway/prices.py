"""What tokens cost. Prices are dollars per million tokens, costs are whole nano-dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy.errors import ConfigError
from argosy.fleet.policies.limits import NANO_USD_PER_USD

_PARTS_PER_NANO_USD = 1_000_000  # a price per million in nano-dollars is a price per token in these parts


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens. A model without a price is free.

    Attributes:
        cached_input_usd_per_million: of prompt tokens that the backend had in its cache; None: like the others.
    """

    input_usd_per_million: float = 0.0
    output_usd_per_million: float = 0.0
    cached_input_usd_per_million: float | None = None
    _parts: tuple[int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the price that is negative or absurd."""
        cached = self.cached_input_usd_per_million
        cached = self.input_usd_per_million if cached is None else cached
        prices = (self.input_usd_per_million, cached, self.output_usd_per_million)
        if not all(0.0 <= price <= 1e6 for price in prices):
            raise ConfigError(f"prices must be from 0 to 1e6 dollars per million tokens, got {prices}")
        input_parts, cached_parts, output_parts = (round(price * NANO_USD_PER_USD) for price in prices)
        object.__setattr__(self, "_parts", (input_parts, cached_parts, output_parts))

    @property
    def is_free(self) -> bool:
        """Whether tokens cost nothing: such requests pass even when a budget is spent."""
        return not any(self._parts)

    def cost_nano_usd(self, input_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Cost of a request, rounded to the nearest nano-dollar; `cached_tokens` are part of `input_tokens`.

        A backend that reports more cached tokens than there are is billed for those there are.
        """
        cached_tokens = min(cached_tokens, input_tokens)
        input_parts, cached_parts, output_parts = self._parts
        parts = (input_tokens - cached_tokens) * input_parts + cached_tokens * cached_parts + output_tokens * output_parts
        return (parts + _PARTS_PER_NANO_USD // 2) // _PARTS_PER_NANO_USD


FREE = Price()


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by name.

    Attributes:
        by_model: by the name of the model, which is the pool of its backends.
        by_backend: by backend id, where one costs other than its model.
    """

    by_model: Mapping[str, Price] = field(default_factory=dict)
    by_backend: Mapping[str, Price] = field(default_factory=dict)

    def price(self, model: str, backend_id: str = "") -> Price:
        """The backend's price, else the model's, else free."""
        return self.by_backend.get(backend_id) or self.by_model.get(model, FREE)

    def highest(self, model: str, backend_ids: tuple[str, ...]) -> Price:
        """Per kind of token the highest price of a model's backends: what to reserve before one is picked."""
        prices = [self.price(model, backend_id) for backend_id in backend_ids] or [self.price(model)]
        cached = [p.cached_input_usd_per_million for p in prices]
        return Price(
            max(p.input_usd_per_million for p in prices),
            max(p.output_usd_per_million for p in prices),
            None if None in cached else max(c for c in cached if c is not None),
        )
