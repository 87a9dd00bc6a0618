"""Order of waiting against a plain sort."""

from hypothesis import given
from hypothesis import strategies as st

from argosy.engine.core.request import Request, Sequence
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.core.waiting_queue import WaitingQueue


def sequence(number, priority, arrival_s, preemptions):
    request = Request(str(number), (1,), SamplingParams(), arrival_s, 0, priority=priority)
    return Sequence(number, request, 0, [1], 1, rank=(priority, arrival_s, number), preemptions=preemptions)


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0.0, 1.0, 2.5]), st.integers(0, 1)), max_size=30),
    st.data(),
)
def test_head_is_the_most_urgent(entries, data):
    queue = WaitingQueue()
    members = [sequence(number, *entry) for number, entry in enumerate(entries)]
    for member in members:
        queue.push(member)
    gone = data.draw(st.sets(st.sampled_from(members))) if members else set()
    for member in gone:
        queue.discard(member)
    left = [m for m in members if m not in gone]
    left.sort(key=lambda m: (m.rank[0], m.rank[1], m.preemptions == 0, m.sequence_id))
    assert queue.sequences() == left
    assert len(queue) == len(left)
    for member in left:
        assert queue.head is member
        assert queue.pop() is member
    assert len(queue) == 0
