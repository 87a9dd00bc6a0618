import math

import pytest

from argosy.errors import ConfigError
from argosy.planner.traffic import PrefixReuse, Traffic


def test_a_shared_prefix_is_one_text_of_that_share():
    traffic = Traffic.of(2, 1000, 100, prefix_share=0.4)
    assert traffic.prefix == PrefixReuse(0.4, 400)
    assert traffic.output_tokens_per_s == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requests_per_s": -1}, "requests_per_s"),
        ({"requests_per_s": 0}, "requests_per_s"),
        ({"requests_per_s": math.nan}, "requests_per_s"),
        ({"requests_per_s": math.inf}, "requests_per_s"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"prompt_tokens": 1.5}, "prompt_tokens"),
        ({"prompt_tokens": math.nan}, "prompt_tokens"),
        ({"output_tokens": 0}, "output_tokens"),
        ({"output_tokens": -3}, "output_tokens"),
        ({"prompt_cv": -0.1}, "prompt_cv"),
        ({"output_cv": math.nan}, "output_cv"),
        ({"prefix_share": 1.0}, "prefix share"),
        ({"prefix_share": -0.2}, "prefix share"),
        ({"burstiness": -1}, "burstiness"),
    ],
)
def test_nonsense_is_refused_naming_the_field(change, words: str):
    arguments = {"requests_per_s": 1, "prompt_tokens": 100, "output_tokens": 10} | change
    with pytest.raises(ConfigError, match=words) as caught:
        Traffic.of(**arguments)
    assert "\n" not in str(caught.value)
