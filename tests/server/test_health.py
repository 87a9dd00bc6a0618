"""Health checks."""

import math
import threading

import pytest

from argosy.engine.core.plan import TokenLogprob
from argosy.server.health import next_token_entropy_nats

LIVE = ["/health", "/health/live", "/healthz", "/livez", "/live", "/ping"]
READY = ["/health/ready", "/readyz", "/ready"]


def statuses(server, paths):
    return {server.http.get(path).status_code for path in paths}


def test_alive_and_ready(server):
    assert statuses(server, LIVE + READY) == {200}
    server.engine.ready = False
    assert (statuses(server, LIVE), statuses(server, READY)) == ({200}, {503})
    server.engine.alive = False
    assert (statuses(server, LIVE), statuses(server, READY)) == ({503}, {503})
    assert server.http.get("/health").json() == {"status": "the engine has died"}


def test_inference(make_server):
    server = make_server(inference_check_ttl_s=0.0)
    answer = server.http.get("/health/inference")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert 0 < answer.json()["entropy_nats"] < math.log(260)
    assert server.last.params.max_tokens == 1
    assert server.last.priority < 0


def test_inference_outcome_is_shared_while_fresh(make_server):
    server = make_server(inference_check_ttl_s=3600.0)
    for _ in range(5):
        assert server.http.get("/health/inference").status_code == 200
    assert len(server.engine.submissions) == 1


def test_one_probe_at_a_time(make_server, script, wait_until):
    server = make_server(inference_check_ttl_s=0.0)
    server.engine.script = script(delay_s=0.3)
    threads = [threading.Thread(target=lambda: server.http.get("/health/inference")) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.engine.submissions) == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"logprob": math.nan}, "not finite"),
        ({"logprob": -math.inf}, "not finite"),
        ({"logprob": 0.0, "top_gap": 50.0}, "entropy"),
        ({"logprob": -math.log(260), "top_gap": 0.0}, "entropy"),
        ({"fail_at": 0}, "not finite"),
        ({"hang_at": 0}, "no token within"),
        ({"die_at": 0}, "died"),
        ({"raise_at": 0}, "see the log"),
    ],
)
def test_a_model_that_makes_no_sense_is_not_healthy(make_server, script, fields, reason):
    server = make_server(inference_check_timeout_s=0.3)
    server.engine.script = script(**fields)
    answer = server.http.get("/health/inference")
    assert answer.status_code == 503
    assert reason in answer.json()["status"]
    assert not server.engine.running


def test_a_full_queue_says_nothing_about_the_model(make_server):
    server = make_server()
    server.engine.queue_limit = 0
    assert server.http.get("/health/inference").status_code == 429


def test_the_band_of_entropy_is_a_setting(make_server):
    assert make_server(inference_entropy_band=(0.9, 1.0)).http.get("/health/inference").status_code == 503


def test_entropy_of_a_known_distribution():
    probabilities = [0.5, 0.25, 0.125, 0.125]
    top = tuple((i, math.log(p)) for i, p in enumerate(probabilities))
    exact = sum(-p * math.log(p) for p in probabilities)
    assert next_token_entropy_nats(TokenLogprob(0, top[0][1], 1, top), 4) == pytest.approx(exact)
    assert next_token_entropy_nats(TokenLogprob(0, top[0][1], 1, top[:2]), 4) == pytest.approx(exact)
    assert math.isnan(next_token_entropy_nats(None, 4))
    assert math.isnan(next_token_entropy_nats(TokenLogprob(0, 0.0, 1, ((0, 0.0), (1, 0.0))), 4))
