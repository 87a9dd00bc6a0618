"""Usage reaches the database once: through queue, journal, loss of the database, and the death of the process."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from argosy.errors import ConfigError, StoreUnavailable
from argosy.fleet.gateway.exchange import Endpoint, Exchange, Principal, TokenUsage
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.prices import Price, PriceTable
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.usage import MAX_TOKENS, UsageRecord, record_from_line, usage_of
from argosy.fleet.gateway.usage_commit import commit_usage
from argosy.fleet.gateway.usage_journal import UsageJournal
from argosy.fleet.gateway.usage_writer import StoreUsageSink, UsageConfig, UsageWriter
from argosy.fleet.policies.limits import Limits, Scope
from argosy.fleet.policies.outcomes import Outcome

SUMS = "SELECT count(*), coalesce(sum(cost_nano_usd), 0) FROM usage_records"


def stored(store: Store) -> tuple[int, int]:
    """Requests and nano-dollars, checked against both sums."""
    daily_sums = "SELECT coalesce(sum(requests), 0), coalesce(sum(cost_nano_usd), 0) FROM daily_spend"
    # In one transaction: the writer may be at work.
    (count, cost), (requests, daily) = store.read(lambda c: (c.execute(text(SUMS)).one(), c.execute(text(daily_sums)).one()))
    assert (int(requests), int(daily)) == (count, int(cost)), "spend is the sum of the costs of the requests"
    return count, int(cost)


class FaultyStore:
    """A store whose writes fail on demand, before or after they happened."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_down = False
        self.loses_acknowledgements = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, work: Callable[..., Any]) -> Any:
        if self.is_down:
            raise StoreUnavailable("down")
        result = self._store.write(work)
        if self.loses_acknowledgements > 0:
            self.loses_acknowledgements -= 1
            raise StoreUnavailable("the connection was lost while it was committed")
        return result


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.01)


FAST = UsageConfig(flush_interval_s=0.01, retry_s=0.02, orphans_interval_s=0.05)


@pytest.fixture
def sqlite_store(open_store: Callable[..., Store], sqlite_url: str) -> Store:
    return open_store(sqlite_url)


def test_each_record_counts_once_however_often_it_is_brought(store: Store, make_record: Any) -> None:
    records = [make_record(budgets=(("key", "key_a", 0.0), ("org", "org_a", 60.0))) for _ in range(5)]
    assert commit_usage(store, records[:3] + records[:1]) == 3
    assert commit_usage(store, records) == 2
    assert commit_usage(store, records) == 0
    assert commit_usage(store, []) == 0
    assert stored(store) == (5, 35)
    spent = store.read(lambda c: c.execute(text("SELECT kind, cost_nano_usd FROM budget_spend ORDER BY kind")).all())
    assert [tuple(row) for row in spent] == [("key", 35), ("org", 35)]


def test_sums_are_per_day_key_team_organisation_and_model(store: Store, make_record: Any) -> None:
    rng = random.Random(1)
    records = [
        make_record(
            key_id=rng.choice("ab"),
            team_id=rng.choice(["", "t"]),
            org_id=rng.choice(["", "o"]),
            model=rng.choice("mn"),
            ended_at_s=1_700_000_000.0 + rng.choice([0, 86_400]),
            cost_nano_usd=rng.randrange(1000),
        )
        for _ in range(300)
    ]
    expected: dict[tuple[str, ...], int] = defaultdict(int)
    for record in records:
        day = "2023-11-14" if record.ended_at_s < 1_700_000_001 else "2023-11-15"
        expected[day, record.key_id, record.team_id, record.org_id, record.model] += record.cost_nano_usd
    for start in range(0, 300, 70):
        commit_usage(store, records[start : start + 70])
    rows = store.read(
        lambda c: c.execute(text("SELECT day, key_id, team_id, org_id, model, cost_nano_usd FROM daily_spend")).all()
    )
    assert {tuple(row[:5]): row[5] for row in rows} == expected


def test_writers_with_the_same_sums_in_another_order_do_not_block_each_other(store: Store, make_record: Any) -> None:
    batches = [
        [make_record(key_id=key, budgets=(("key", key, 0.0),)) for key in (names if turn % 2 else names[::-1])]
        for turn in range(24)
        for names in [[f"k{number}" for number in range(10)]]
    ]
    failures: list[BaseException] = []

    def bring(mine: list[list[UsageRecord]]) -> None:
        try:
            for batch in mine:
                commit_usage(store, batch)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=bring, args=(batches[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert stored(store) == (240, 240 * 7)


@given(st.text(max_size=20), st.integers(0, 2**40), st.booleans())
def test_a_line_of_the_journal_is_the_record(name: str, cost: int, flag: bool) -> None:
    record = UsageRecord(
        name, name, "", "", name, "", 0.1, 1e9 + 0.3, 1, 0, 1, cost, 200, "x", flag, flag, (("key", name, 0.5),), name
    )
    line = record.line()
    assert line.count(b"\n") == 1
    assert record_from_line(line) == record


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b'{"budgets": [[1]]}', b"\xff"])
def test_other_lines_are_no_records(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, whatever a decoder says
        record_from_line(line)


def test_all_that_is_recorded_is_stored_and_the_journal_ends_empty(
    sqlite_store: Store, tmp_path: Path, make_record: Any
) -> None:
    journal = UsageJournal(tmp_path / "journal", segment_bytes=2000)
    writer = UsageWriter(sqlite_store, journal, FAST)
    writer.start()
    threads = [threading.Thread(target=lambda: [writer.record(make_record()) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.stop()
    journal.close()
    assert stored(sqlite_store) == (800, 5600)
    assert (writer.num_stored, writer.num_lost, writer.num_open) == (800, 0, 0)
    assert list((tmp_path / "journal").iterdir()) == []


def test_while_the_database_is_away_nothing_waits_and_nothing_is_lost(
    sqlite_store: Store, tmp_path: Path, make_record: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    faulty = FaultyStore(sqlite_store)
    faulty.is_down = True
    journal = UsageJournal(tmp_path / "journal", segment_bytes=3000)
    writer = UsageWriter(faulty, journal, replace(FAST, max_queued=20, max_batch=10))  # type: ignore[arg-type]
    writer.start()
    for _ in range(300):
        writer.record(make_record())
    until(lambda: writer.is_store_lost)
    time.sleep(0.1)
    assert len(writer._queue) == 20
    assert writer.num_open == 300
    faulty.is_down = False
    until(lambda: stored(sqlite_store)[0] == 300)
    for _ in range(50):
        writer.record(make_record())
    assert writer.stop()
    assert stored(sqlite_store) == (350, 350 * 7)
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("usage waits for the database") == 1
    assert messages.count("usage is written to the database again") == 1


def test_a_commit_whose_acknowledgement_is_lost_counts_once(sqlite_store: Store, tmp_path: Path, make_record: Any) -> None:
    faulty = FaultyStore(sqlite_store)
    faulty.loses_acknowledgements = 3
    writer = UsageWriter(faulty, UsageJournal(tmp_path / "journal"), FAST)  # type: ignore[arg-type]
    for _ in range(50):
        writer.record(make_record())
    writer.start()
    until(lambda: writer.num_open == 0)
    assert writer.stop()
    assert stored(sqlite_store) == (50, 350)


def test_what_a_process_leaves_the_next_one_brings(sqlite_store: Store, tmp_path: Path, make_record: Any) -> None:
    folder = tmp_path / "journal"
    first = UsageJournal(folder, segment_bytes=1500)
    records = [make_record() for _ in range(20)]
    for record in records:
        first.append(record)
    commit_usage(sqlite_store, records[:7])  # and then the process died, before it could end their segment
    first.close()
    assert list(folder.iterdir())
    second = UsageJournal(folder)
    writer = UsageWriter(sqlite_store, second, FAST)
    writer.start()
    until(lambda: stored(sqlite_store)[0] == 20)
    writer.stop()
    second.close()
    assert stored(sqlite_store) == (20, 140)
    assert list(folder.iterdir()) == []


def test_a_living_process_keeps_its_segments(sqlite_store: Store, tmp_path: Path, make_record: Any) -> None:
    first, second = UsageJournal(tmp_path / "journal"), UsageJournal(tmp_path / "journal")
    first.append(make_record())
    assert list(second.orphans()) == []
    first.close()
    assert [len(records) for _, records in second.orphans()] == [1]


def test_a_torn_last_line_is_left_out_and_a_damaged_one_kept_aside(
    sqlite_store: Store, tmp_path: Path, make_record: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    lines = [make_record().line() for _ in range(3)]
    (folder / "torn-000001.ndjson").write_bytes(lines[0] + lines[1][:40])
    (folder / "damaged-000001.ndjson").write_bytes(b"garbage\n" + lines[2])
    journal = UsageJournal(folder)
    writer = UsageWriter(sqlite_store, journal, FAST)
    writer.start()
    until(lambda: stored(sqlite_store)[0] == 2)
    writer.stop()
    journal.close()
    assert [entry.name for entry in folder.iterdir()] == ["damaged-000001.damaged"]
    assert "line cannot be read" in caplog.text


def test_a_full_disk_costs_no_record_while_memory_has_room(
    sqlite_store: Store, tmp_path: Path, make_record: Any, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyStore(sqlite_store)
    faulty.is_down = True
    journal = UsageJournal(tmp_path / "journal", max_bytes=1000)
    writer = UsageWriter(faulty, journal, replace(FAST, max_queued=10, max_batch=10))  # type: ignore[arg-type]
    for _ in range(12):
        writer.record(make_record())
    assert writer.is_journal_lost
    assert writer.num_lost == 2
    assert "usage lost" in caplog.text
    assert [record.getMessage() for record in caplog.records].count("usage journal lost") == 1
    faulty.is_down = False
    writer.start()
    until(lambda: writer.num_open == 0)
    writer.record(make_record())
    assert not writer.is_journal_lost
    assert writer.stop()
    assert stored(sqlite_store)[0] == 11


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        UsageJournal(tmp_path / "file" / "journal")


KILLED = """
import sys
from pathlib import Path
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.store import Store, StoreConfig
from argosy.fleet.gateway.usage import UsageRecord
from argosy.fleet.gateway.usage_journal import UsageJournal
from argosy.fleet.gateway.usage_writer import UsageConfig, UsageWriter

store = Store(StoreConfig(sys.argv[1]))
store.open(KeyHasher(bytes(range(32))).fingerprint())
journal = UsageJournal(Path(sys.argv[2]), segment_bytes=20_000)
writer = UsageWriter(store, journal, UsageConfig(max_queued=300, max_batch=50, flush_interval_s=0.001))
writer.start()
number = 0
while True:
    name = f"{journal.process_id}-{number}"
    writer.record(UsageRecord(name, "k", "", "", "m", "b", 1.0, 2.0, 1, 0, 1, 7, 200, "dispatched", False, False))
    print(number, flush=True)
    number += 1
"""


def test_kill_9_loses_nothing_and_counts_nothing_twice(
    open_store: Callable[..., Store], sqlite_url: str, hasher: KeyHasher, tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    num_acknowledged = 0
    for lines_before in (150, 700, 1500):
        process = subprocess.Popen([sys.executable, "-c", KILLED, sqlite_url, str(folder)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        last = -1
        for line in process.stdout:
            last = int(line)
            if last >= lines_before:
                process.kill()
                break
        rest = process.stdout.read().split()  # written before the signal came
        process.wait()
        num_acknowledged += max([last, *(int(number) for number in rest if number.isdigit())]) + 1
    store = open_store(sqlite_url)
    journal = UsageJournal(folder)
    writer = UsageWriter(store, journal, FAST)
    writer.start()
    until(lambda: not [path for path in folder.glob("*.ndjson") if not path.name.startswith(journal.process_id)])
    writer.stop()
    journal.close()
    count, cost = stored(store)
    # The last record of each process may have been written down without having been told of.
    assert num_acknowledged <= count <= num_acknowledged + 3
    assert cost == count * 7


def exchange(**fields: Any) -> Exchange:
    made = Exchange(Endpoint("/v1/completions", "completion"), "POST", "/", {}, b"", "client-id", "e1", 100.0)
    made.principal = Principal(
        "key_a",
        "org_a",
        "team_a",
        scopes=(
            (Scope("key", "key_a"), Limits(max_budget_usd=1.0, budget_period_s=60.0)),
            (Scope("team", "team_a"), Limits(rpm=1)),
            (Scope("org", "org_a"), Limits(max_budget_usd=1.0)),
        ),
    )
    made.pool, made.backend_id, made.attempts, made.finished_s, made.status = "m", "b", 1, 103.0, 200
    made.outcome, made.usage = Outcome.DISPATCHED, TokenUsage(100, 40, 10, True)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


PRICES = PriceTable({"m": Price(1.0, 2.0, 0.5)})


def test_a_record_says_what_the_exchange_took_and_cost() -> None:
    record = usage_of(exchange(), PRICES, process_id="p", now_s=1000.0)
    assert record == UsageRecord(
        request_id="p-e1",
        key_id="key_a",
        team_id="team_a",
        org_id="org_a",
        model="m",
        backend="b",
        started_at_s=997.0,
        ended_at_s=1000.0,
        input_tokens=100,
        cached_tokens=40,
        output_tokens=10,
        cost_nano_usd=60 * 1000 + 40 * 500 + 10 * 2000,
        status=200,
        outcome="dispatched",
        streamed=False,
        estimated=False,
        budgets=(("key", "key_a", 60.0), ("org", "org_a", 0.0)),
        x_request_id="client-id",
    )
    long = usage_of(exchange(request_id="i" * 1000), PRICES, process_id="p", now_s=1.0)
    assert long is not None
    assert long.x_request_id == "i" * 128


def test_a_line_of_an_earlier_version_is_still_a_record(make_record: Any) -> None:
    record = make_record()
    values = {name: value for name, value in orjson.loads(record.line()).items() if name != "x_request_id"}
    assert record_from_line(orjson.dumps(values)) == record


def test_what_reached_no_backend_leaves_no_record() -> None:
    assert usage_of(exchange(attempts=0), PRICES, process_id="p", now_s=1.0) is None
    assert usage_of(exchange(principal=None), PRICES, process_id="p", now_s=1.0) is None


@pytest.mark.parametrize("usage", [TokenUsage(-5, 0, 10, True), TokenUsage(5, 9, 10, True), TokenUsage(5, 0, 10**30, True)])
def test_impossible_usage_is_bounded_and_marked(usage: TokenUsage) -> None:
    record = usage_of(exchange(usage=usage), PRICES, process_id="p", now_s=1.0)
    assert record is not None
    assert record.estimated
    assert 0 <= record.cached_tokens <= record.input_tokens <= MAX_TOKENS
    assert 0 <= record.output_tokens <= MAX_TOKENS
    assert 0 <= record.cost_nano_usd < 2**63


def test_the_sink_prices_and_hands_over(sqlite_store: Store, tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path / "journal")
    writer = UsageWriter(sqlite_store, journal, FAST)
    sink = StoreUsageSink(writer, PRICES, process_id=journal.process_id)
    writer.start()
    sink.record(exchange())
    sink.record(exchange(exchange_id="e2", usage=TokenUsage()))
    sink.record(exchange(exchange_id="e3", attempts=0))
    assert writer.stop()
    assert stored(sqlite_store) == (2, 100_000)


@pytest.mark.parametrize("settings", [{"max_batch": 0}, {"max_queued": 5, "max_batch": 6}, {"flush_interval_s": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        UsageConfig(**settings)
