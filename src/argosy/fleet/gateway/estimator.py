"""What a request will take, guessed before admission, and what it took, priced in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from argosy.errors import InvalidRequest
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.prices import Price, PriceTable
from argosy.fleet.gateway.stages import Route
from argosy.fleet.policies.estimates import OutputQuantile
from argosy.fleet.policies.limits import MAX_BUDGET_USD, NANO_USD_PER_USD, Demand

_PROMPT_FIELDS = ("messages", "prompt", "input", "query", "documents", "system", "instructions", "tools")
_BYTES_PER_TOKEN = 4
_MESSAGE_TOKENS = 4
_PART_TOKENS = 512  # of an image, sound or file, which only the backend can count


class QuantileEstimator:
    """Prompt by its length in bytes, answer by the learned quantile of earlier answers (an `Estimator`).

    The cost that is reserved is that of the longest answer the client allows, where it sets a bound, so that a budget cannot
    be overspent by answers longer than expected.
    """

    def __init__(
        self, quantile: OutputQuantile, prices: PriceTable, backends_of: Callable[[str], tuple[str, ...]] = lambda _pool: ()
    ) -> None:
        """`backends_of` names the backends of a pool, which may cost differently. `prices` may be replaced while running."""
        self._quantile = quantile
        self.prices = prices
        self._backends_of = backends_of
        self._highest: dict[str, tuple[PriceTable, tuple[str, ...], Price]] = {}

    def estimate(self, exchange: Exchange, route: Route) -> Demand:
        """The demand to be reserved. Fills in `prompt_tokens` and `expected_output_tokens`."""
        exchange.prompt_tokens = prompt_tokens(exchange.document)
        bound = exchange.max_output_tokens
        expected = 0
        most = 0
        if exchange.endpoint.kind in ("chat", "completion", "responses", "messages"):
            num_answers = _num_answers(exchange.document)
            expected = num_answers * self._quantile.tokens(exchange.caller.tenant, route.pool, bound)
            most = expected if bound is None else num_answers * bound
        exchange.expected_output_tokens = expected
        price = self._highest_price(route.pool)
        cost_usd = _usd(price.cost_nano_usd(exchange.prompt_tokens, 0, most))
        return Demand(exchange.prompt_tokens, expected, cost_usd, bound)

    def actual(self, exchange: Exchange, route: Route) -> Demand:
        """What it took; an answer that came to its end is learnt from."""
        usage = exchange.usage
        if exchange.status == 200 and usage.output_tokens:
            self._quantile.observe(exchange.caller.tenant, route.pool, usage.output_tokens)
        price = self.prices.price(route.pool, exchange.backend_id)
        cost = price.cost_nano_usd(usage.input_tokens, usage.cached_tokens, usage.output_tokens)
        return Demand(usage.input_tokens, usage.output_tokens, _usd(cost))

    def _highest_price(self, pool: str) -> Price:
        """The highest price of a pool's backends, made again when they or the prices have changed."""
        backend_ids = self._backends_of(pool)
        known = self._highest.get(pool)
        if known is None or known[0] is not self.prices or known[1] != backend_ids:
            known = self._highest[pool] = (self.prices, backend_ids, self.prices.highest(pool, backend_ids))
        return known[2]


def _usd(cost_nano_usd: int) -> float:
    """In dollars, and no more than any budget holds: a client may allow an answer of 2^64 tokens."""
    return min(cost_nano_usd / NANO_USD_PER_USD, MAX_BUDGET_USD)


def prompt_tokens(document: Mapping[str, Any]) -> int:
    """Tokens of a prompt: four bytes of UTF-8 text count as one, and token ids as what they are.

    Raises:
        InvalidRequest: it is nested too deeply.
    """
    try:
        return sum(_tokens(document[name]) for name in _PROMPT_FIELDS if document.get(name) is not None)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


def _tokens(value: Any) -> int:
    if isinstance(value, str):
        size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        return -(-size // _BYTES_PER_TOKEN)
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return len(value)
        return sum(_tokens(part) for part in value if isinstance(part, str | list | dict))
    if isinstance(value, dict):
        return _tokens_of_part(value)
    return 0


def _tokens_of_part(part: Mapping[str, Any]) -> int:
    kind = part.get("type")
    if isinstance(kind, str) and ("image" in kind or "audio" in kind or "file" in kind or "video" in kind):
        return _PART_TOKENS
    own = _MESSAGE_TOKENS if "role" in part else 0
    return own + sum(_tokens(value) for name, value in part.items() if name not in ("role", "type"))


def _num_answers(document: Mapping[str, Any]) -> int:
    """`n`, or the `best_of` that the answers are chosen from; for completions of several prompts so many for each."""
    num_answers = max(document.get("n") or 1, document.get("best_of") or 1)
    prompts = document.get("prompt")
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        num_answers *= len(prompts)
    return num_answers
