import math

import pytest

from argosy.cost.checks import at_least_one, fraction, not_negative, positive, utilisation
from argosy.errors import ConfigError


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (positive, (1e-300, 5), (0, -1, math.nan, math.inf)),
        (not_negative, (0, 5), (-1e-300, math.nan, math.inf)),
        (at_least_one, (1, 5, 2.0), (0, -1, 1.5, math.nan, math.inf)),
        (fraction, (0, 0.5, 1), (-0.1, 1.1, math.nan, math.inf)),
        (utilisation, (1e-9, 1), (0, 1.0001, math.nan)),
    ],
)
def test_first_bad_value_is_named_with_what_it_was(check, good, bad):
    for value in good:
        check(field=value)
    for value in bad:
        with pytest.raises(ConfigError, match=r"field must be .*got") as caught:
            check(ok=good[-1], field=value)
        assert "\n" not in str(caught.value)
