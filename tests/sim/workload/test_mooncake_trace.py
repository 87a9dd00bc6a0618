import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import TraceFileError
from argosy.sim.workload.mooncake_trace import mooncake_requests
from argosy.sim.workload.trace_request import TraceRequest

Write = Callable[..., Path]


def read(path: Path, contents: str = "m") -> list[TraceRequest]:
    return list(mooncake_requests(path, "m", contents))


def entry(timestamp: object, prompt: object, output: object, *blocks: object) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": list(blocks)}


def written(write: Write, *entries: object) -> Path:
    return write("t.jsonl", *(item if isinstance(item, str) else json.dumps(item) for item in entries))


def test_lines_become_requests_that_share_blocks(write: Write):
    first, second = read(written(write, entry(250, 600, 5, 0, 1), entry(1500, 1536, 6, 0, 1, 7)))
    assert (first.request_id, first.arrival_s, first.num_prompt_tokens, first.output_tokens) == ("m/0", 0.25, 600, 5)
    assert (second.request_id, second.arrival_s, second.num_prompt_tokens, second.output_tokens) == ("m/1", 1.5, 1536, 6)
    assert [segment.num_tokens for segment in first.segments] == [512, 88]
    assert second.token_ids(1000)[:600] == first.token_ids(1000)
    assert second.token_ids(1000)[600:688] != first.token_ids(1000)[:88]


def test_contents_of_different_names_are_apart(write: Write):
    path = written(write, entry(0, 600, 5, 0, 1))
    assert {s.content_id for s in read(path, "a")[0].segments}.isdisjoint(s.content_id for s in read(path, "b")[0].segments)
    assert read(path, "a") == read(path, "a")


def test_without_block_ids_every_prompt_is_its_own(write: Write):
    lines = [{key: value for key, value in entry(0, 600, 5).items() if key != "hash_ids"}] * 2
    first, second = read(written(write, *lines))
    assert first.num_prompt_tokens == 600
    assert first.segments != second.segments


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=20), ids=st.integers(0, 1 << 60))
def test_any_prompt_is_whole_blocks_and_a_tail(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], ids: int):
    path = tmp_path_factory.mktemp("m") / "t.jsonl"
    rows = [entry(i, n, 1, *range(ids, ids + -(-n // 512))) for i, n in enumerate(lengths)]
    path.write_text("\n".join(map(json.dumps, rows)))
    requests = read(path)
    assert [request.num_prompt_tokens for request in requests] == lengths
    assert all(s.num_tokens == 512 for request in requests for s in request.segments[:-1])
    longest = max(requests, key=lambda request: request.num_prompt_tokens).token_ids(50_000)
    assert all(longest[: request.num_prompt_tokens] == request.token_ids(50_000) for request in requests)


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (("{",), 1, "is not JSON"),
        (("[1]",), 1, "is not a JSON object"),
        ((entry(0, 1, 1, 0), "", entry(0, 1, 1, 0)), 2, "is empty"),
        ((entry(0, 1, 1, 0), {"timestamp": 1, "input_length": 5}), 2, "has no output_length"),
        ((entry(-1, 5, 5, 0),), 1, "timestamp must be a number of at least 0, got -1"),
        ((entry("0", 5, 5, 0),), 1, "timestamp must be a number"),
        ((entry(None, 5, 5, 0),), 1, "timestamp must be a number"),
        ((entry(True, 5, 5, 0),), 1, "timestamp must be a number"),
        ((entry(1e18, 5, 5, 0),), 1, "another unit"),
        ((entry(0, 0, 5),), 1, "input_length must be"),
        ((entry(0, True, 5, 0),), 1, "input_length must be"),
        ((entry(0, 5.5, 5, 0),), 1, "input_length must be"),
        ((entry(0, 5, 1 << 70, 0),), 1, "output_length must be"),
        ((entry(0, 5, (1 << 24) + 1, 0),), 1, "above the 16777216 tokens"),
        ((entry(0, 5, 5) | {"hash_ids": "abc"},), 1, "hash_ids must be a list"),
        ((entry(0, 5, 5) | {"hash_ids": None},), 1, "hash_ids must be a list"),
        ((entry(0, 5, 5, 0.5),), 1, "hash_ids must be whole numbers"),
        ((entry(0, 5, 5, -1),), 1, "hash_ids must be whole numbers"),
        ((entry(0, 5, 5),), 1, "hash_ids has 0 ids, but an input_length of 5 is 1 blocks"),
        ((entry(0, 513, 5, 0),), 1, "hash_ids has 1 ids"),
        ((entry(0, 512, 5, 0, 1),), 1, "hash_ids has 2 ids"),
        ((entry(0, 5, 5, 0) | {"chat_id": 3},), 1, "has a key 'chat_id'"),
        (('{"timestamp": NaN, "input_length": 5, "output_length": 5}',), 1, "is not JSON"),
        (('{"timestamp": 1e999, "input_length": 5, "output_length": 5}',), 1, ""),
        ((entry(5, 5, 5, 0), entry(4, 5, 5, 0)), 2, "arrives before the line above"),
    ],
)
def test_a_wrong_line_is_named(write: Write, lines: tuple[object, ...], line: int, words: str):
    path = written(write, *lines)
    with pytest.raises(TraceFileError) as caught:
        read(path)
    assert str(caught.value).startswith(f"trace {path} line {line}: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200
