import math

import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.soft_quota import SoftQuota


@pytest.mark.parametrize(
    ("load", "burst"),
    [(0.0, 2.0), (0.5, 2.0), (0.6, 1.75), (0.7, 1.5), (0.8, 1.25), (0.9, 1.0), (1.4, 1.0), (math.nan, 1.0)],
)
def test_soft_limits_stretch_while_the_fleet_has_room(load, burst):
    assert SoftQuota().burst(load) == pytest.approx(burst)


@pytest.mark.parametrize("settings", [{"max_burst": 0.5}, {"free_below": 0.9}, {"enforced_above": 0.4}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError, match="soft quota"):
        SoftQuota(**settings)
