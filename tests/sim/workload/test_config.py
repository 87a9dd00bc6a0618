import copy
from typing import Any

import pytest

from argosy.errors import ConfigError
from argosy.sim.workload.arrivals import Poisson
from argosy.sim.workload.config import SourceConfig, WorkloadConfig
from argosy.sim.workload.distributions import Fixed

TRACE: dict[str, Any] = {"name": "replay", "trace": {"path": "t.csv"}}
CHAT: dict[str, Any] = {
    "name": "chat",
    "arrivals": {"kind": "poisson", "rate_per_s": 4},
    "requests": {"user_tokens": 300, "output_tokens": 80},
}
LOOP: dict[str, Any] = {"name": "loop", "closed_loop": {"clients": 4}, "requests": {"user_tokens": 3, "output_tokens": 8}}


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(settings)
    for key, value in changes.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result


def one(source: dict[str, Any], **workload: Any) -> WorkloadConfig:
    return WorkloadConfig.from_mapping({"sources": [source], "duration_s": 60, **workload})


def test_settings_become_what_they_say():
    (source,) = one(CHAT).sources
    assert isinstance(source, SourceConfig)
    assert source.arrivals == Poisson(4.0)
    assert source.requests is not None
    assert source.requests.user_tokens == Fixed(300.0)
    assert (source.tenant, source.priority, source.timeout_s, source.rate_factor, source.start_s) == (None, None, None, 1, 0)
    assert one(LOOP).sources[0].closed_loop.think_s == Fixed(0.0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (merged(CHAT, {"arivals": 1}), "workload.sources[0] has an unknown key 'arivals': did you mean arrivals?"),
        (merged(CHAT, {"name": ""}), "workload.sources[0]: name must be letters"),
        (merged(CHAT, {"name": "a/b"}), "workload.sources[0]: name must be letters"),
        (merged(CHAT, {"name": "x" * 65}), "workload.sources[0]: name must be letters"),
        (merged(CHAT, {"trace": TRACE["trace"]}), "workload.sources[0]: needs either trace or requests"),
        ({"name": "x", "arrivals": CHAT["arrivals"]}, "workload.sources[0]: needs either trace or requests"),
        (merged(CHAT, {"arrivals": None}), "workload.sources[0]: requests need arrivals or closed_loop"),
        (merged(CHAT, {"closed_loop": {"clients": 1}}), "workload.sources[0]: closed_loop decides when requests come"),
        (merged(LOOP, {"rate_factor": 2}), "workload.sources[0]: closed_loop has no rate to scale"),
        (merged(LOOP, {"closed_loop": {"clients": 0}}), "workload.sources[0].closed_loop: clients must be"),
        (merged(LOOP, {"closed_loop": {"ramp_s": -1}}), "workload.sources[0].closed_loop: ramp_s must be"),
        (merged(CHAT, {"rate_factor": 0}), "workload.sources[0]: rate_factor must be"),
        (merged(CHAT, {"start_s": -1}), "workload.sources[0]: start_s must be"),
        (merged(CHAT, {"timeout_s": 0}), "workload.sources[0]: timeout_s must be"),
        (merged(CHAT, {"priority": 0.5}), "workload.sources[0].priority must be a whole number"),
        (
            merged(CHAT, {"arrivals": {"kind": "poison"}}),
            "workload.sources[0].arrivals.kind 'poison' is unknown: did you mean poisson?",
        ),
        (merged(CHAT, {"arrivals": {"rate_per_s": -1}}), "workload.sources[0].arrivals: rate_per_s must be"),
        (
            merged(CHAT, {"requests": {"user_tokens": "3"}}),
            "workload.sources[0].requests.user_tokens must be a finite number",
        ),
        (merged(CHAT, {"requests": {"user_tokens": None}}), "workload.sources[0].requests: needs user_tokens"),
        (
            merged(CHAT, {"requests": {"user_tokens": {"kind": "mixture", "parts": [{"weight": 0, "distribution": 1}]}}}),
            "workload.sources[0].requests.user_tokens.parts[0]: weight must be",
        ),
        (merged(TRACE, {"trace": {"from_s": -1}}), "workload.sources[0].trace: from_s must be"),
        (merged(TRACE, {"trace": {"from_s": 5, "to_s": 5}}), "workload.sources[0].trace: to_s must be above from_s"),
        (merged(TRACE, {"trace": {"prompt_factor": 0}}), "workload.sources[0].trace: prompt_factor must be"),
        (merged(TRACE, {"trace": {"output_factor": -1}}), "workload.sources[0].trace: output_factor must be"),
        (merged(TRACE, {"trace": {"max_prompt_tokens": 0}}), "workload.sources[0].trace: max_prompt_tokens must be"),
        (merged(TRACE, {"trace": {"max_output_tokens": 0}}), "workload.sources[0].trace: max_output_tokens must be"),
        (merged(TRACE, {"trace": {"repeat": {"times": 0}}}), "workload.sources[0].trace.repeat: times must be"),
        (
            merged(TRACE, {"trace": {"repeat": {"times": 2, "period_s": 0}}}),
            "workload.sources[0].trace.repeat: period_s must be",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_path(source: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        one(source)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sources": []}, "workload: sources must not be empty"),
        ({}, "workload needs sources"),
        ({"sources": [TRACE, TRACE]}, "workload: two sources have the name 'replay'"),
        ({"sources": [TRACE, CHAT]}, "workload: source 'chat' never ends; set duration_s or max_requests"),
        ({"sources": [LOOP]}, "workload: source 'loop' never ends"),
        ({"sources": [TRACE], "duration_s": 0}, "workload: duration_s must be"),
        ({"sources": [TRACE], "max_requests": 0}, "workload: max_requests must be"),
        ({"sources": [TRACE], "durations": 5}, "workload has an unknown key 'durations': did you mean duration_s?"),
    ],
)
def test_what_is_wrong_with_the_whole_is_named(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        WorkloadConfig.from_mapping(settings)
    assert str(caught.value).startswith(message)


def test_a_trace_ends_by_itself_and_generated_ones_by_a_limit():
    WorkloadConfig.from_mapping({"sources": [TRACE, merged(TRACE, {"name": "x", "arrivals": CHAT["arrivals"]})]})
    for limit in ({"duration_s": 5}, {"max_requests": 5}):
        WorkloadConfig.from_mapping({"sources": [CHAT, LOOP], **limit})
