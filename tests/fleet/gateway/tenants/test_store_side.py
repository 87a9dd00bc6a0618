"""The whole of it together: a key made over the admin API, used, billed, and bounded by its budget after a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from argosy.errors import ConfigError, Unauthorized
from argosy.fleet.gateway.budgets import BudgetState, restore_spending
from argosy.fleet.gateway.config_operations import AuthSettings, StoreSettings
from argosy.fleet.gateway.exchange import Endpoint, Exchange, TokenUsage
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.prices import Price, PriceTable
from argosy.fleet.gateway.store_side import StoreSide
from argosy.fleet.policies.ledger import Denial, Lease, Ledger
from argosy.fleet.policies.limits import Demand
from argosy.fleet.policies.outcomes import Outcome

MASTER_KEY = "master-key-0123456789"
PRICES = PriceTable({"paid": Price(10_000.0, 0.0)})  # a cent per token


class Run:
    """One life of a gateway process: ledger and database side."""

    def __init__(self, settings: StoreSettings, hasher: KeyHasher) -> None:
        self.ledger = Ledger(unix_offset_s=time.time())
        self.side = StoreSide(settings, AuthSettings(), hasher, PRICES, on_budgets=self._restore)
        self.side.start()
        self._number = 0

    def _restore(self, states: tuple[BudgetState, ...]) -> None:
        restore_spending(self.ledger, states, now_s=0.0, unix_s=time.time())

    async def request(self, key: str, tokens: int = 1, model: str = "paid") -> Outcome:
        """A request through authentication, ledger and usage, as the pipeline does it."""
        self._number += 1
        made = Exchange(Endpoint("/v1/score", "passthrough"), "POST", "/", {}, b"", "r", f"e{self._number}", 0.0)
        made.principal = await self.side.authenticator.authenticate(key, made)
        cost_usd = PRICES.price(model).cost_nano_usd(tokens, 0, 0) / 1e9
        demand = Demand(tokens, 0, cost_usd)
        lease = self.ledger.acquire(made.principal.scopes, demand, now_s=0.0)
        if isinstance(lease, Denial):
            return lease.outcome
        assert isinstance(lease, Lease)
        made.pool, made.attempts, made.usage = model, 1, TokenUsage(tokens, 0, 0, True)
        self.ledger.settle(lease, demand, now_s=0.0)
        self.side.sink.record(made)
        return Outcome.DISPATCHED

    async def admin(self, path: str, body: Any) -> Any:
        transport = httpx.ASGITransport(self.side.admin_app(MASTER_KEY))
        headers = {"authorization": f"Bearer {MASTER_KEY}"}
        async with httpx.AsyncClient(base_url="http://a", transport=transport, headers=headers) as client:
            response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture
def settings(sqlite_url: str, tmp_path: Path) -> StoreSettings:
    return StoreSettings(url=sqlite_url, journal=str(tmp_path / "usage"))


@pytest.fixture
def start(settings: StoreSettings, hasher: KeyHasher) -> Callable[[], Run]:
    return lambda: Run(settings, hasher)


async def test_a_budget_object_bounds_its_keys_over_restarts(start: Callable[[], Run]) -> None:
    run = start()
    budget = await run.admin("/budget/new", {"max_budget": 0.02})
    key = (await run.admin("/key/generate", {"budget_id": budget["budget_id"]}))["key"]
    free_of_budget = (await run.admin("/key/generate", {}))["key"]
    assert await run.request(key) is Outcome.DISPATCHED
    await run.side.close()

    run = start()
    assert await run.request(key) is Outcome.DISPATCHED
    assert await run.request(key) is Outcome.REJECTED_BUDGET
    assert await run.request(key, model="free") is Outcome.DISPATCHED, "what costs nothing passes a budget that is spent"
    for _ in range(5):
        assert await run.request(free_of_budget) is Outcome.DISPATCHED
    await run.side.close()

    run = start()
    assert await run.request(key) is Outcome.REJECTED_BUDGET
    await run.admin("/budget/update", {"budget_id": budget["budget_id"], "max_budget": 0.03})
    assert await run.request(key) is Outcome.DISPATCHED
    assert await run.request(key) is Outcome.REJECTED_BUDGET
    await run.side.close()


async def test_a_key_blocked_here_is_refused_at_once_and_elsewhere_soon(start: Callable[[], Run]) -> None:
    here, elsewhere = start(), start()
    made = await here.admin("/key/generate", {})
    for run in (here, elsewhere):
        assert await run.request(made["key"]) is Outcome.DISPATCHED
    await here.admin("/key/block", {"key": made["key_id"]})
    with pytest.raises(Unauthorized):
        await here.request(made["key"])
    deadline_s = time.monotonic() + 20.0
    while True:
        try:
            await elsewhere.request(made["key"])
        except Unauthorized:
            break
        assert time.monotonic() < deadline_s, "the other process never heard of it"
        await asyncio.sleep(0.05)
    for run in (here, elsewhere):
        await run.side.close()


async def test_what_scopes_of_the_file_have_spent_can_be_asked_for(start: Callable[[], Run]) -> None:
    run = start()
    key = (await run.admin("/key/generate", {"max_budget": 1.0}))["key"]
    await run.request(key, tokens=3)
    identity = await run.side.authenticator.authenticate(key, None)  # type: ignore[arg-type]
    while run.side.writer.num_open:
        await asyncio.sleep(0.01)
    (state,) = run.side.budget_states(identity.scopes, time.time())
    assert state.spent_usd == 0.03
    assert not run.side.is_lost
    await run.side.close()
    await run.side.close()


async def test_a_url_with_its_password_comes_from_elsewhere(
    settings: StoreSettings, hasher: KeyHasher, tmp_path: Path
) -> None:
    side = StoreSide(settings, AuthSettings(), hasher, PRICES, url=f"sqlite:///{tmp_path}/other.db")
    await side.close()
    assert (tmp_path / "other.db").exists()
    assert not (tmp_path / "gateway.db").exists()
    with pytest.raises(ConfigError, match="another secret"):
        StoreSide(settings, AuthSettings(), KeyHasher(bytes(32)), PRICES, url=f"sqlite:///{tmp_path}/other.db")
