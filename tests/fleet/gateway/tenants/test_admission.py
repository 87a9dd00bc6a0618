from __future__ import annotations

import time
from pathlib import Path

from argosy.fleet.gateway.admission import Admission
from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.config_models import BackendSettings, ModelSettings
from argosy.fleet.gateway.config_operations import AuthSettings
from argosy.fleet.gateway.config_tenants import KeySettings, OrganisationSettings, TeamSettings
from argosy.fleet.gateway.prices import PriceTable
from argosy.fleet.policies.ledger import Lease
from argosy.fleet.policies.limits import Demand, Dimension, Limits, Scope

DAY_S = 86_400.0


async def test_budget_periods_of_the_ledger_are_those_of_the_database(tmp_path: Path) -> None:
    key = KeySettings("k", "K", limits=Limits(max_budget_usd=1.0, budget_period_s=DAY_S))
    config = GatewayConfig(
        models=(ModelSettings("m", (BackendSettings("http://127.0.0.1:1"),)),),
        auth=AuthSettings(secret_file=str(tmp_path / "secret")),
        tenants=(OrganisationSettings("o", (TeamSettings("t", (key,)),)),),
        store=None,
    )
    admission = Admission(config, {"K": "sk-k"}, PriceTable(), process_id="p", clock=lambda: 100.0, burst=lambda: 1.0)
    lease = await admission.ledger.acquire([(Scope("key", "k"), key.limits)], Demand(cost_usd_estimate=0.5), now_s=100.0)
    assert isinstance(lease, Lease)
    status = admission._local.ledger.status(Scope("key", "k"), Dimension.BUDGET, now_s=100.0)
    assert status is not None
    assert abs(status.reset_s - (DAY_S - time.time() % DAY_S)) < 60.0
    await admission.close()
