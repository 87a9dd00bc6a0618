import pytest

from argosy.cost.parallel import ParallelPlan
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.zero import ZeroStage
from argosy.errors import ConfigError


def test_effective_batch_of_a_plan():
    plan = TrainingPlan(ParallelPlan(data=4, tensor=2), 128, micro_batch=2, micro_batches=8)
    assert plan.sequences_per_step == 64
    assert plan.tokens_per_step == 64 * 128


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: TrainingPlan(ParallelPlan(), 0), "sequence"),
        (lambda: TrainingPlan(ParallelPlan(), 128, micro_batch=-1), "micro_batch"),
        (lambda: TrainingPlan(ParallelPlan(), 128, micro_batches=0), "micro_batches"),
        (lambda: TrainingPlan(ParallelPlan(), 128, reserved_bytes=float("nan")), "reserved_bytes"),
        (lambda: TrainingPlan(ParallelPlan(context=3), 128), "context parallelism 3"),
        (lambda: TrainingPlan(ParallelPlan(tensor=3, sequence_parallel=True), 128), "sequence parallelism over tensor 3"),
        (lambda: TrainingPlan(ParallelPlan(data=4), 128, shard_ranks=2), "shard_ranks 2 needs"),
        (lambda: TrainingPlan(ParallelPlan(data=4), 128, zero=ZeroStage.PARAMETERS, shard_ranks=3), "shard_ranks 3"),
        (lambda: TrainingPlan(ParallelPlan(interleave=2, pipeline=2), 128), "chunks=2"),
        (
            lambda: TrainingPlan(
                ParallelPlan(pipeline=4, interleave=2), 128, micro_batches=6, schedule=Schedule.INTERLEAVED
            ),
            "micro_batches",
        ),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
