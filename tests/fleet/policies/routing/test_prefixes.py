from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.prefix_index import ApproximatePrefixIndex
from argosy.fleet.policies.routing.request import (
    RoutingRequest,
    chain_root,
    text_block_hashes,
    token_block_hashes,
)

SYSTEM = tuple(range(1000, 1512))


def unique(number: int, length: int = 256) -> tuple[int, ...]:
    return tuple(Random(number).choices(range(30_000), k=length))


def num_common(a, b) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class TestHashes:
    def test_equal_prefixes_give_equal_hashes_and_what_follows_does_not(self):
        root = chain_root("")
        a = token_block_hashes((*SYSTEM, *unique(1)), 16, root)
        b = token_block_hashes((*SYSTEM, *unique(2)), 16, root)
        assert len(a) == 48
        assert a[:32] == b[:32]
        assert not set(a[32:]) & set(b[32:])

    def test_the_same_block_elsewhere_is_another_block(self):
        first, second = token_block_hashes((7, 7, 7, 7), 2, chain_root(""))
        assert first != second

    def test_only_whole_blocks_are_hashed(self):
        assert [len(token_block_hashes(tuple(range(n)), 16, 0)) for n in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]

    def test_tenants_and_adapters_share_nothing(self):
        roots = [chain_root("org_1", "2345"), chain_root("org_12345"), chain_root("org_12345", "x"), chain_root("")]
        assert len(set(roots)) == 4
        hashes = [token_block_hashes(SYSTEM, 16, root) for root in roots]
        assert len({block for blocks in hashes for block in blocks}) == 4 * 32

    def test_bytes_are_chained_likewise(self):
        a, b = text_block_hashes(b"abcdabcd", 4, chain_root("")), text_block_hashes(b"abcdabce", 4, chain_root(""))
        assert a[0] == b[0]
        assert len({a[0], a[1], b[1]}) == 3
        assert text_block_hashes(b"abcd", 4, chain_root("t")) != a[:1]

    def test_hashes_are_the_same_in_every_process(self):
        assert chain_root("tenant") == 2706950124810234070
        assert token_block_hashes((1, 2, 3, 4), 2, 5) == (-1289567792466438380, -741059316223760504)


class TestApproximateIndex:
    def test_the_longest_prefix_of_each_replica(self, prompt):
        index = ApproximatePrefixIndex()
        index.record(prompt("a", (*SYSTEM, *unique(1))), "r0", 0.0)
        index.record(prompt("b", SYSTEM[:160]), "r1", 0.0)
        asks = prompt("c", (*SYSTEM, *unique(2)))
        assert index.match(asks, 1.0) == {"r0": 512, "r1": 160}
        assert index.match(prompt("d", unique(3)), 1.0) == {}
        assert index.match(prompt("e", SYSTEM, salt="other tenant"), 1.0) == {}

    def test_a_block_that_is_not_used_is_forgotten(self, prompt):
        index = ApproximatePrefixIndex(ttl_s=60.0)
        asks = prompt("a", SYSTEM)
        index.record(asks, "r0", 0.0)
        index.record(prompt("b", SYSTEM[:32]), "r0", 50.0)
        assert index.match(asks, 60.0) == {"r0": 512}
        assert index.match(asks, 61.0) == {"r0": 32}
        index.record(prompt("c", unique(1, 16)), "r0", 70.0)
        assert index.num_blocks == 3

    def test_memory_is_bounded_and_ends_of_prefixes_go_first(self, prompt):
        index = ApproximatePrefixIndex(max_blocks_per_replica=32)
        for number in range(200):
            index.record(prompt(f"q{number}", (*SYSTEM[:64], *unique(number))), f"r{number % 2}", float(number))
            assert index.num_blocks <= 64
        matched = index.match(prompt("x", SYSTEM), 200.0)
        assert matched == {"r0": 64, "r1": 64}

    def test_a_prompt_longer_than_the_memory_keeps_its_beginning(self, prompt):
        index = ApproximatePrefixIndex(max_blocks_per_replica=4)
        index.record(prompt("a", SYSTEM), "r0", 0.0)
        assert index.match(prompt("b", SYSTEM), 0.0) == {"r0": 64}

    def test_a_replica_that_lost_its_cache_is_forgotten(self, prompt):
        index = ApproximatePrefixIndex()
        for replica_id in ("r0", "r1"):
            index.record(prompt("a", SYSTEM), replica_id, 0.0)
        index.forget("r0")
        index.forget("r0")
        assert index.match(prompt("b", SYSTEM), 0.0) == {"r1": 512}
        index.forget("r1")
        assert index.num_blocks == 0
        assert not index._holders

    @pytest.mark.parametrize(("values", "message"), [((0, 1.0), "max_blocks"), ((1, 0.0), "ttl_s")])
    def test_impossible_settings_are_refused(self, values, message):
        with pytest.raises(ConfigError, match=message):
            ApproximatePrefixIndex(*values)

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(["r0", "r1", "r2"]), st.lists(st.integers(0, 2), max_size=6), st.booleans()),
            max_size=40,
        )
    )
    def test_matches_equal_those_of_a_plain_list_when_nothing_is_evicted(self, operations):
        index = ApproximatePrefixIndex()
        sent: dict[str, list[tuple[int, ...]]] = {}

        def asks(tokens) -> RoutingRequest:
            blocks = token_block_hashes(tuple(tokens), 1, 0)
            return RoutingRequest("q", prompt_tokens=len(tokens), prefix_blocks=blocks, prefix_block_tokens=1)

        for replica_id, tokens, forget in operations:
            expected = {}
            for other, prompts in sent.items():
                common = max((num_common(p, tokens) for p in prompts), default=0)
                if common:
                    expected[other] = common
            assert index.match(asks(tokens), 0.0) == expected
            if forget:
                index.forget(replica_id)
                sent.pop(replica_id, None)
            else:
                index.record(asks(tokens), replica_id, 0.0)
                sent.setdefault(replica_id, []).append(tuple(tokens))


class TestKvEventIndex:
    def stored_prompt(self, index: KvEventIndex, replica_id: str, tokens, first_block: int = 0, **names) -> list[int]:
        parent, ids = None, []
        for place in range(0, len(tokens) - 15, 16):
            block_id = first_block + place // 16
            index.stored(replica_id, block_id, parent, tuple(tokens[place : place + 16]), **names)
            parent = block_id
            ids.append(block_id)
        return ids

    def test_what_is_stored_is_matched_until_it_is_removed(self, prompt):
        index = KvEventIndex(16)
        ids = self.stored_prompt(index, "r0", SYSTEM)
        asks = prompt("a", (*SYSTEM, *unique(1)))
        assert index.match(asks, 0.0) == {"r0": 512}
        for block_id in reversed(ids[10:]):
            index.removed("r0", block_id)
        assert index.match(asks, 0.0) == {"r0": 160}
        index.removed("r0", ids[-1])
        index.cleared("r0")
        assert index.match(asks, 0.0) == {}
        assert index.num_blocks == 0
        assert not index._holders

    def test_salt_and_adapter_tell_prefixes_apart(self, prompt):
        index = KvEventIndex(16)
        self.stored_prompt(index, "r0", SYSTEM, cache_salt="tenant")
        assert index.match(prompt("a", SYSTEM), 0.0) == {}
        assert index.match(prompt("a", SYSTEM, salt="tenant"), 0.0) == {"r0": 512}

    def test_a_block_id_that_is_used_again_stands_for_the_latest(self, prompt):
        index = KvEventIndex(16)
        index.stored("r0", 3, None, SYSTEM[:16])
        index.stored("r0", 3, None, unique(1, 16))
        assert index.match(prompt("a", SYSTEM), 0.0) == {}
        assert index.match(prompt("a", unique(1, 16)), 0.0) == {"r0": 16}
        assert index.num_blocks == 1

    def test_two_blocks_of_equal_content_are_held_until_both_are_gone(self, prompt):
        index = KvEventIndex(16)
        for block_id in (1, 2):
            index.stored("r0", block_id, None, SYSTEM[:16])
        index.removed("r0", 1)
        assert index.match(prompt("a", SYSTEM), 0.0) == {"r0": 16}
        index.removed("r0", 2)
        assert index.match(prompt("a", SYSTEM), 0.0) == {}

    def test_a_block_below_an_unknown_one_is_left_out(self, prompt):
        index = KvEventIndex(16)
        index.stored("r0", 5, 4, SYSTEM[16:32])
        assert index.num_blocks == 0

    def test_prompts_hashed_in_other_blocks_are_an_error(self, prompt):
        with pytest.raises(ConfigError, match="blocks of 32 tokens, the replicas' KV blocks have 16"):
            KvEventIndex(16).match(prompt("a", SYSTEM, block=32), 0.0)

    def test_only_events_count(self, prompt):
        index = KvEventIndex(16)
        index.record(prompt("a", SYSTEM), "r0", 0.0)
        assert index.match(prompt("a", SYSTEM), 0.0) == {}


class TestPrefixAwareRouting:
    def test_a_prompt_goes_where_its_prefix_went(self, pool, router, prompt):
        replicas, route = pool(8), router("prefix_aware")
        homes = {}
        for user in range(8):
            decision = route.pick(prompt(f"a{user}", unique(user, 512)), replicas, 0.0)
            homes[user] = decision.replica
            route.first_token(decision, 1.0)
            route.finish(decision, 2.0)
        for user in range(8):
            again = route.pick(prompt(f"b{user}", (*unique(user, 512), *unique(100 + user, 64))), replicas, 3.0)
            assert again.replica is homes[user]
            assert (again.cached_tokens, again.booked_prefill_tokens) == (512, 64)

    def test_reuse_loses_against_a_queue_that_costs_more(self, pool, router, prompt):
        replicas, route = pool(2), router("prefix_aware", held_token_cost=0.0)
        first = route.pick(prompt("a", SYSTEM), replicas, 0.0)
        route.first_token(first, 0.0)
        home, other = first.replica, next(replica for replica in replicas if replica is not first.replica)
        home.booked.prefill_tokens = 480
        assert route.pick(prompt("b", SYSTEM), replicas, 0.0).replica is home
        home.booked.prefill_tokens = 520
        assert route.pick(prompt("c", SYSTEM), replicas, 0.0).replica is other

    def test_a_popular_prefix_spreads_as_far_as_its_traffic_needs(self, pool, router, prompt):
        """All requests share a prefix and none ends: no replica is left idle and none gets more than its share."""
        replicas, route = pool(4), router("prefix_aware")
        for number in range(200):
            route.pick(prompt(f"q{number}", (*SYSTEM, *unique(number))), replicas, 0.0)
        counts = [replica.booked.requests for replica in replicas]
        assert max(counts) - min(counts) <= 4

    @pytest.mark.parametrize("name", ["prefix_aware", "prefix_precise"])
    def test_prompts_with_nothing_in_common_use_every_replica(self, name, pool, router, prompt):
        """256 unique prompts of different length over 5 replicas: each gets 15 to 25 %, also when they end at once."""
        for ends_at_once in (False, True):
            replicas, route, picked = pool(5), router(name), Counter()
            for number in range(256):
                asks = prompt(f"q{number}", unique(number, Random(-number).randrange(64, 256)))
                decision = route.pick(asks, replicas, float(number))
                picked[decision.replica.replica_id] += 1
                if ends_at_once:
                    route.finish(decision, float(number))
            assert len(picked) == 5
            assert all(0.15 <= count / 256 <= 0.25 for count in picked.values())

    def test_load_counts_what_is_reused_as_done(self, pool, router, prompt):
        replicas, route = pool(1), router("prefix_aware")
        for number in range(2):
            route.pick(prompt(f"q{number}", SYSTEM, output=10), replicas, 0.0)
        assert replicas[0].booked.tokens == 512 + 10 + 10

    def test_a_prompt_with_only_an_image_is_routed(self, pool, router):
        replicas, route = pool(3), router("prefix_aware")
        asks = RoutingRequest("q", prompt_tokens=0, prefix_blocks=(), prefix_block_tokens=16)
        assert route.pick(asks, replicas, 0.0).cached_tokens == 0
