import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.sim.workload.recorded_trace import recorded_requests
from argosy.sim.workload.trace_recorder import ServedRequest, TraceRecorder
from argosy.sim.workload.trace_request import TraceRequest

SALT = bytes(range(16))
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=20)


def recorder(block_tokens: int = 4, salt: bytes = SALT, start_s: float = 100.0) -> TraceRecorder:
    return TraceRecorder(block_tokens=block_tokens, salt=salt, start_s=start_s)


def recorded(path: Path, served: list[tuple[list[int], list[int]]], **settings: object) -> list[TraceRequest]:
    """Records requests that come and end one after the other, and reads the file."""
    rec = recorder(**settings)  # type: ignore[arg-type]
    lines = [rec.header]
    for number, (prompt, output) in enumerate(served):
        rec.arrived(str(number), 100.0 + number)
        lines += rec.finished(ServedRequest(str(number), prompt, output))
    path.write_text("".join(lines + rec.close()))
    return list(recorded_requests(path))


def shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


@given(served=st.lists(st.tuples(TOKENS, TOKENS), min_size=2, max_size=6), block_tokens=st.integers(1, 6))
def test_a_replay_shares_exactly_the_whole_blocks_that_were_shared(
    tmp_path_factory: pytest.TempPathFactory, served: list[tuple[list[int], list[int]]], block_tokens: int
):
    replayed = recorded(tmp_path_factory.mktemp("r") / "t.ndjson", served, block_tokens=block_tokens)
    assert [(r.num_prompt_tokens, r.output_tokens) for r in replayed] == [(len(p), len(o)) for p, o in served]
    whole = [(*prompt, *output) for prompt, output in served]
    # A vocabulary so large that different contents do not agree by chance.
    copies = [request.token_ids(1 << 32) + request.answer_token_ids(1 << 32) for request in replayed]
    for i in range(len(served)):
        for j in range(i):
            blocks = shared(whole[i], whole[j]) // block_tokens
            same = min(len(whole[i]), len(whole[j])) if whole[i] == whole[j] else blocks * block_tokens
            assert shared(copies[i], copies[j]) == same


def test_the_next_turn_finds_the_answer_even_in_the_block_where_the_prompt_ended(tmp_path: Path):
    prompt, answer = [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]
    first, second = recorded(tmp_path / "t.ndjson", [(prompt, answer), ([*prompt, *answer, 12, 13], [1])])
    said = first.token_ids(50_000) + first.answer_token_ids(50_000)
    # Blocks of 4: the prompt ends within the second, and two whole blocks were said.
    assert second.token_ids(50_000)[:8] == said[:8]
    assert first.segments[-1].num_tokens == 2
    assert (first.output_segments[0].content_id, first.output_segments[0].start) == (first.segments[-1].content_id, 2)


def test_neither_tokens_nor_names_nor_the_salt_are_in_the_file():
    rec = recorder(salt=b"a very secret salt of 32 bytes!!")
    rec.arrived("live-id", 101.5)
    (text,) = rec.finished(ServedRequest("live-id", [31337, 31338], [31339], "session-name", "tenant-name", 2, 9.0))
    entry = json.loads(text)
    assert set(entry) == {"id", "arrival_s", "prompt", "output", "session", "tenant", "priority", "timeout_s"}
    assert (entry["id"], entry["arrival_s"], entry["priority"], entry["timeout_s"]) == ("0", 1.5, 2, 9.0)
    for secret in ("31337", "31338", "31339", "session-name", "tenant-name", "live-id", "secret"):
        assert secret not in text + rec.header


def test_names_stay_alike_within_a_file_and_differ_between_salts(tmp_path: Path):
    def line(rec: TraceRecorder, request_id: str, session: str, tenant: str) -> dict[str, object]:
        rec.arrived(request_id, 100.0)
        (text,) = rec.finished(ServedRequest(request_id, [1, 2, 3, 4], [5], session, tenant))
        return json.loads(text)

    rec, other = recorder(), recorder(salt=bytes(16))
    first, second, third = line(rec, "a", "s", "s"), line(rec, "b", "s", "t"), line(other, "a", "s", "s")
    assert first["session"] == second["session"] != third["session"]
    # A session and a tenant of one name are not the same.
    assert first["tenant"] not in (second["tenant"], first["session"])
    assert first["prompt"] == second["prompt"] != third["prompt"]
    assert "session" not in line(rec, "c", "", "")


def test_lines_wait_for_what_arrived_before_them():
    rec = recorder()
    for position, name in enumerate("abcde"):
        rec.arrived(name, 100.0 + position)
    ended = {name: ServedRequest(name, [1], [2]) for name in "abcde"}
    ids = lambda lines: [json.loads(text)["id"] for text in lines]  # noqa: E731
    assert ids(rec.finished(ended["c"])) == []
    assert ids(rec.finished(ended["b"])) == []
    assert ids(rec.dropped("a")) == ["1", "2"]
    assert ids(rec.finished(ended["e"])) == []
    # What is under way at the end leaves no line, and holds nothing back any longer.
    assert ids(rec.close()) == ["4"]
    assert rec.close() == []


@given(st.data())
def test_any_order_of_ends_gives_a_trace_in_order_of_arrival(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    rec = recorder()
    lines, waiting, arrived, answered = [rec.header], [], 0, 0
    for _ in range(data.draw(st.integers(1, 40))):
        if waiting and data.draw(st.booleans()):
            name = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            if data.draw(st.booleans()):
                lines += rec.finished(ServedRequest(name, [1], [2]))
                answered += 1
            else:
                lines += rec.dropped(name)
        else:
            rec.arrived(f"r{arrived}", 100.0 + arrived // 3)
            waiting.append(f"r{arrived}")
            arrived += 1
        if not waiting:
            assert len(lines) == 1 + answered
    lines += rec.close()
    path = tmp_path_factory.mktemp("r") / "t.ndjson"
    path.write_text("".join(lines))
    # The reader refuses rows out of order.
    ids = [int(request.request_id) for request in recorded_requests(path)]
    assert ids == sorted(ids)
    assert len(ids) == answered


def test_misuse_is_refused():
    for salt in (bytes(15), bytes(65)):
        with pytest.raises(ConfigError, match="a salt has 16 to 64 bytes"):
            recorder(salt=salt)
    with pytest.raises(ConfigError, match="block_tokens"):
        recorder(block_tokens=0)
    rec = recorder()
    with pytest.raises(ValueError, match="in order"):
        rec.arrived("a", 99.0)
    rec.arrived("a", 101.0)
    with pytest.raises(ValueError, match="in order"):
        rec.arrived("b", 100.5)
    with pytest.raises(ValueError, match="under way already"):
        rec.arrived("a", 102.0)
    with pytest.raises(KeyError):
        rec.finished(ServedRequest("unknown", [1], [1]))
