import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from argosy.errors import ConfigError
from argosy.sim.random_streams import RandomStreams
from argosy.sim.workload.distributions import Exponential, Fixed, Lognormal, Uniform
from argosy.sim.workload.generated import GeneratedSource
from argosy.sim.workload.requests import Conversation, RequestShape, SystemPrompts
from argosy.sim.workload.trace_request import TraceRequest

Play = Callable[..., list[tuple[TraceRequest, float]]]
PLAIN = RequestShape(Lognormal(300, 1), Exponential(80))


def source(shape: RequestShape, count: int = 1000, seed: int = 1, folder: Path = Path()) -> GeneratedSource:
    times: Iterator[float] = (float(second) for second in range(count))
    return GeneratedSource("chat", times, shape, RandomStreams(seed), folder)


def test_single_requests_are_texts_of_their_own():
    requests = list(source(PLAIN))
    assert [request.request_id for request in requests] == [f"chat/{n}" for n in range(1000)]
    assert [request.arrival_s for request in requests] == [float(n) for n in range(1000)]
    assert len({request.segments[0].content_id for request in requests}) == 1000
    assert all(request.session_id == "" and len(request.segments) == 1 for request in requests)
    # Four standard errors.
    mean = sum(request.num_prompt_tokens for request in requests) / 1000
    assert mean == pytest.approx(300, abs=4 * 300 / math.sqrt(1000))


def test_a_seed_repeats_and_another_differs():
    assert list(source(PLAIN)) == list(source(PLAIN))
    assert list(source(PLAIN)) != list(source(PLAIN, seed=2))


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        (RequestShape(Lognormal(300, 1), Uniform(1, 9)), "num_user_tokens"),
        (RequestShape(Fixed(5), Exponential(80)), "output_tokens"),
        (RequestShape(Lognormal(300, 1), Exponential(80), None, SystemPrompts(9, Uniform(1, 99))), "output_tokens"),
        (RequestShape(Lognormal(300, 1), Exponential(80), None, SystemPrompts(9, Uniform(1, 99))), "num_user_tokens"),
        (
            RequestShape(Lognormal(300, 1), Exponential(80), None, None, Conversation(Fixed(1), Exponential(9))),
            "output_tokens",
        ),
    ],
)
def test_no_draw_feels_another_quantity(changed: RequestShape, same: str):
    def values(shape: RequestShape) -> list[int]:
        requests = source(shape)
        return [
            request.output_tokens if same == "output_tokens" else request.segments[-1].num_tokens for request in requests
        ]

    assert values(changed) == values(PLAIN)


def test_system_prompts_have_zipfs_shares_and_one_length_each():
    shape = RequestShape(Fixed(10), Fixed(5), system_prompts=SystemPrompts(20, Uniform(100, 900), zipf=1.1))
    count = 20_000
    requests = list(source(shape, count))
    found = Counter(request.segments[0] for request in requests)
    assert len(found) == 20
    weights = [k**-1.1 for k in range(1, 21)]
    wanted = [count * weight / sum(weights) for weight in weights]
    # Segment k is the k-th most frequent wherever shares are far apart; chi-square has mean 19 and variance 38.
    chi_square = sum((n - w) ** 2 / w for (_, n), w in zip(found.most_common(), wanted, strict=True))
    assert chi_square < 19 + 4 * math.sqrt(38)
    assert all(100 <= segment.num_tokens <= 900 for segment in found)
    assert len({segment.num_tokens for segment in found}) > 10
    assert all(len(request.segments) == 2 and request.segments[1].num_tokens == 10 for request in requests)


def test_an_exponent_of_zero_makes_system_prompts_alike():
    found = Counter(
        r.segments[0] for r in source(RequestShape(Fixed(1), Fixed(1), None, SystemPrompts(4, Fixed(9), 0.0)), 8000)
    )
    # Binomial(8000, 1/4): deviation 39.
    assert all(abs(n - 2000) < 4 * 39 for n in found.values())
    assert len(found) == 4


def conversation(max_prompt_tokens: int | None = None) -> RequestShape:
    return RequestShape(
        Uniform(5, 20),
        Uniform(10, 30),
        None,
        SystemPrompts(3, Fixed(40)),
        Conversation(Fixed(4), Fixed(2.5), max_prompt_tokens),
    )


def test_turns_repeat_what_was_said_and_wait_for_the_answer(play: Play):
    served = play(source(conversation(), 50), service_s=1.5)
    assert len(served) == 200
    for session_id, group in itertools.groupby(
        sorted(served, key=lambda s: (s[0].session_id, s[0].arrival_s)), lambda s: s[0].session_id
    ):
        turns = list(group)
        assert [turn.request_id for turn, _ in turns] == [f"{session_id}.{k}" for k in range(4)]
        for (earlier, end_s), (later, _) in itertools.pairwise(turns):
            said = earlier.token_ids(50_000) + earlier.answer_token_ids(50_000)
            assert later.token_ids(50_000)[: len(said)] == said
            assert 5 <= later.num_prompt_tokens - len(said) <= 20
            assert later.arrival_s == end_s + 2.5
    assert len({turn.session_id for turn, _ in served}) == 50


def test_what_is_said_does_not_depend_on_when_answers_end(play: Play):
    quick, slow = (
        sorted(((r.request_id, r.segments, r.output_tokens) for r, _ in play(source(conversation(), 50), service_s=s)))
        for s in (0.01, 400.0)
    )
    assert quick == slow


def test_a_conversation_ends_before_a_prompt_that_would_be_too_long(play: Play):
    unlimited, limited = play(source(conversation(), 50)), play(source(conversation(120), 50))
    assert max(turn.num_prompt_tokens for turn, _ in limited) <= 120
    assert 50 < len(limited) < len(unlimited)
    # A conversation ends early only where the longest thing a user says could be too much.
    longest = Counter(turn.session_id for turn, _ in limited)
    for turn, _ in limited:
        number = int(turn.request_id.rpartition(".")[2])
        if number + 1 == longest[turn.session_id] < 4:
            assert turn.num_prompt_tokens + turn.output_tokens + 20 > 120


def test_a_prompt_of_just_the_limit_is_sent(play: Play):
    # Prompts of 10, 25 and 40 tokens.
    for limit, turns in ((40, 3), (39, 2), (25, 2), (24, 1)):
        shape = RequestShape(Fixed(10), Fixed(5), conversation=Conversation(Fixed(3), Fixed(0), max_prompt_tokens=limit))
        assert len(play(source(shape, 1))) == turns


def test_a_first_turn_is_sent_however_long():
    shape = RequestShape(Fixed(500), Fixed(5), conversation=Conversation(Fixed(3), Fixed(0), max_prompt_tokens=100))
    sent = source(shape, 1)
    (first,) = sent
    assert first.num_prompt_tokens == 500
    assert list(sent.on_finish(first, 1.0)) == []


def test_memory_holds_only_conversations_under_way(play: Play):
    sent = source(conversation(), 200)
    play(sent)
    assert sent._sessions == {}


def test_lengths_of_a_trace_stay_pairs(tmp_path: Path):
    rows = [{"timestamp": n, "input_length": n + 1, "output_length": 1000 - n} for n in range(500)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    requests = list(source(RequestShape(lengths_from="t.jsonl"), 4000, folder=tmp_path))
    assert all(request.num_prompt_tokens + request.output_tokens == 1001 for request in requests)
    # A uniform draw of 1..500: mean 250.5, deviation 144.
    assert sum(r.num_prompt_tokens for r in requests) / 4000 == pytest.approx(250.5, abs=4 * 144 / math.sqrt(4000))


def test_an_absurd_length_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="give the distribution a max"):
        next(iter(source(RequestShape(Fixed(1e9), Fixed(1)))))
    with pytest.raises(ConfigError, match="give the distribution a max"):
        source(RequestShape(Fixed(1), Fixed(1), system_prompts=SystemPrompts(1, Fixed(1e9))))
