from hypothesis import given
from hypothesis import strategies as st

from argosy.fleet.policies.keyed_heap import KeyedHeap

OPERATIONS = st.lists(st.tuples(st.sampled_from(["rank", "discard"]), st.integers(0, 9), st.integers(0, 5)), max_size=300)


@given(OPERATIONS)
def test_the_first_is_the_lowest_rank_and_of_those_the_one_ranked_first(operations):
    heap, model = KeyedHeap(), {}
    for number, (name, key, rank) in enumerate(operations):
        if name == "discard":
            heap.discard(key)
            model.pop(key, None)
        else:
            heap.rank(key, rank)
            if key not in model or model[key][0] != rank:
                model[key] = (rank, number)
        lowest = min(model.items(), key=lambda item: item[1], default=None)
        assert heap.first() == (None if lowest is None else (lowest[1][0], lowest[0]))
        assert len(heap) == len(model)
        assert (key in heap) == (key in model)
        assert heap.num_entries <= 2 * len(heap) + KeyedHeap._MIN_SWEEP


def test_what_changes_its_rank_a_thousand_times_stays_small():
    heap = KeyedHeap()
    for rank in range(1000):
        heap.rank("key", -rank)
    assert heap.first() == (-999, "key")
    assert heap.num_entries <= 66
