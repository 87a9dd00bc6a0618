from argosy.fleet.policies.autoscaling.victims import replicas_to_remove
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo, ReplicaState


def test_what_starts_goes_first_then_the_least_loaded_then_the_latest():
    ready = [ReplicaState(ReplicaInfo(f"r{number}")) for number in range(4)]
    for replica, load in zip(ready, (1, 5, 1, 0), strict=True):
        replica.take_report(LoadReport(0.0, num_running=load))
    starting = [ReplicaState(ReplicaInfo(f"s{number}")) for number in range(2)]
    removed = replicas_to_remove(starting, ready, 5)
    assert [replica.replica_id for replica in removed] == ["s1", "s0", "r3", "r2", "r0"]
    assert replicas_to_remove(starting, ready, 0) == []
