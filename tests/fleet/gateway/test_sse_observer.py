"""Any cut of a stream gives the same bytes and the same counts."""

import itertools

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from argosy.fleet.gateway.sse_observer import SseObserver, data_of, find_usage

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}


def chunk(text, **fields):
    return orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}}], **fields})


USAGE_CHUNK = orjson.dumps({"choices": [], "usage": USAGE})


def stream(events, newline=b"\n", blank=None):
    return b"".join(b"data: " + event + newline + (blank or newline) for event in events)


def feed_in_pieces(observer, data, cuts):
    edges = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    out = b"".join(observer.feed(data[a:b]) for a, b in itertools.pairwise(edges))
    return out + observer.flush()


newlines = st.sampled_from([b"\n", b"\r\n", b"\r"])
texts = st.lists(st.text(max_size=6), max_size=5)
cuts = st.lists(st.integers(0, 400), max_size=40)


@given(texts, newlines, cuts)
@example(["读"], b"\r\n", list(range(400)))
def test_every_byte_passes_whatever_the_cut(parts, newline, cuts):
    data = stream([*(chunk(text) for text in parts), USAGE_CHUNK, b"[DONE]"], newline)
    observer = SseObserver(strip_usage=False)
    assert feed_in_pieces(observer, data, cuts) == data
    assert observer.is_done
    assert observer.num_chunks == sum(bool(text) for text in parts)
    assert (observer.usage.input_tokens, observer.usage.cached_tokens, observer.usage.output_tokens) == (7, 5, 3)


@given(texts, newlines, cuts)
@example(["a"], b"\r\n", list(range(400)))
@example(["a"], b"\r", list(range(400)))
def test_the_usage_chunk_alone_is_taken_out(parts, newline, cuts):
    chunks = [chunk(text) for text in parts]
    data = stream([*chunks, USAGE_CHUNK, b"[DONE]"], newline)
    observer = SseObserver(strip_usage=True)
    assert feed_in_pieces(observer, data, cuts) == stream([*chunks, b"[DONE]"], newline)
    assert observer.usage.output_tokens == 3


@given(cuts)
def test_mixed_line_ends_and_comments(cuts):
    data = (
        b": ping\n\nevent: x\r\nid: 1\r\ndata:" + chunk("a") + b'\r\n\r\ndata: {"choices":[{"delta":\n'
        b'data:  {"content":"bc"}}]}\n\nretry: 5\n\ndata:[DONE]\r\r'
    )
    observer = SseObserver(strip_usage=True)
    assert feed_in_pieces(observer, data, cuts) == data
    assert (observer.num_chunks, observer.is_done, observer.num_events) == (2, True, 3)


def test_an_event_without_its_blank_line_counts():
    observer = SseObserver(strip_usage=True)
    data = stream([chunk("a")]) + b"data: [DONE]"
    assert observer.feed(data) + observer.flush() == data
    assert observer.is_done


def test_a_usage_chunk_without_its_blank_line_is_taken_out():
    observer = SseObserver(strip_usage=True)
    assert observer.feed(stream([chunk("a")]) + b"data: " + USAGE_CHUNK) + observer.flush() == stream([chunk("a")])
    assert observer.usage.output_tokens == 3


def test_usage_beside_text_stays():
    data = stream([chunk("a", usage=USAGE), b"[DONE]"])
    observer = SseObserver(strip_usage=True)
    assert observer.feed(data) == data
    assert observer.usage.output_tokens == 3


def test_an_endless_event_is_passed_on_and_not_kept():
    observer = SseObserver(strip_usage=True, max_event_bytes=1000)
    sent = observer.feed(b"data: ")
    total = b"data: "
    for _ in range(100):
        piece = b"x" * 100
        total += piece
        sent += observer.feed(piece)
        assert len(observer._pending) <= 1000
    rest = b"\n\n" + stream([chunk("a"), USAGE_CHUNK, b"[DONE]"])
    sent += observer.feed(rest) + observer.flush()
    assert sent == total + b"\n\n" + stream([chunk("a"), b"[DONE]"])
    assert observer.num_chunks == 1


def test_tokens_are_counted_by_chunks_or_by_length():
    by_chunk = SseObserver(strip_usage=False)
    by_chunk.feed(stream([chunk(text) for text in ("Hello", " there", "!")]))
    assert by_chunk.counted_tokens() == 3
    by_length = SseObserver(strip_usage=False)
    by_length.feed(stream([chunk("x" * 400)]))
    assert by_length.counted_tokens() == 100


def test_tool_calls_and_reasoning_count():
    observer = SseObserver(strip_usage=False)
    call = {"index": 0, "function": {"name": "f", "arguments": "{}"}}
    observer.feed(
        stream(
            [
                orjson.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}),
                orjson.dumps({"choices": [{"delta": {"reasoning_content": "hm"}}]}),
                orjson.dumps({"choices": [{"delta": {"role": "assistant"}}]}),
                orjson.dumps({"choices": [{"text": "t"}]}),
            ]
        )
    )
    assert observer.num_chunks == 3


def test_an_error_event_is_noticed():
    observer = SseObserver(strip_usage=True)
    data = stream([b'{"error":{"message":"no"}}'])
    assert observer.feed(data) == data
    assert observer.has_failed


def test_events_of_the_responses_api():
    done = {"type": "response.completed", "response": {"usage": {"input_tokens": 4, "output_tokens": 2}}}
    observer = SseObserver(strip_usage=False)
    observer.feed(stream([orjson.dumps({"type": "response.output_text.delta", "delta": "hi"}), orjson.dumps(done)]))
    assert (observer.num_chunks, observer.is_done, observer.usage.input_tokens) == (1, True, 4)


def test_events_of_the_messages_api():
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 1}},
    }
    observer = SseObserver(strip_usage=False)
    observer.feed(
        stream(
            [
                orjson.dumps(start),
                orjson.dumps({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}}),
                orjson.dumps({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}),
                orjson.dumps({"type": "message_stop"}),
            ]
        )
    )
    usage = observer.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (25, 20, 9)
    assert observer.is_done


def test_data_lines_are_joined():
    assert data_of(b"data: a\r\ndata:b\ndata:  c\rid: 7") == b"a\nb\n c"
    assert data_of(b": comment") == b""


def test_nonsense_usage_is_zero():
    usage = find_usage({"usage": {"prompt_tokens": -3, "completion_tokens": "many"}})
    assert (usage.input_tokens, usage.output_tokens) == (0, 0)
    assert find_usage({"usage": None}) is None
    assert find_usage({"usage": {"prompt_tokens": 10**9, "completion_tokens": 1}}).input_tokens == 10**9
    for name in ("prompt_tokens", "completion_tokens", "output_tokens", "cache_read_input_tokens"):
        assert find_usage({"usage": {name: 10**9 + 1}}) is None
