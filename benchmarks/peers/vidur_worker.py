"""Runs Vidur on a trace with step times of Argosy's cost model in place of its profiles, and prints what came out.

Run by an interpreter that has `vidur` installed, with Argosy's `src` on PYTHONPATH. A job is one JSON object on stdin, the
answer one on stdout. Vidur's own step times come from profiles that it downloads; with equal step times what differs is the
simulator: its scheduler, its bookkeeping, its event loop. Its metrics and traces are off, so that only those are timed.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from typing import Any

from vidur._native.entities import ExecutionTime
from vidur.config import (
    CacheConfig,
    ClusterConfig,
    MetricsConfig,
    RandomForrestExecutionTimePredictorConfig,
    ReplicaConfig,
    RoundRobinGlobalSchedulerConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    TraceRequestGeneratorConfig,
)
from vidur.execution_time_predictor import BaseExecutionTimePredictor, ExecutionTimePredictorRegistry
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType

from argosy.cost.calibration_file import constants_for
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.parallel import ParallelPlan
from argosy.cost.step_time_model import StepTimeModel
from argosy.sim.step_pricer import Chunk, StepPricer, StepShape


def pricer(job: dict[str, Any]) -> StepPricer:
    device = find_device(job["device"])
    deployment = Deployment(find_model(job["model"]), ParallelPlan.for_serving(job["tensor"]))
    return StepPricer(StepTimeModel(deployment, device, Topology.of(device), constants_for(device.name, "vllm")))


def predictor_class(prices: StepPricer) -> type[BaseExecutionTimePredictor]:
    """A predictor that answers with the seconds of a batch; Vidur adds up layers, of which it gets one."""

    class CostModelPredictor(BaseExecutionTimePredictor):
        def get_execution_time(self, batch: Any, pipeline_stage: int) -> ExecutionTime:  # noqa: ARG002
            decoding, seen, chunks = 0, 0, []
            for request, new, context in zip(batch.requests, batch.num_q_tokens, batch.num_kv_tokens, strict=True):
                if request.is_prefill_complete:
                    decoding += 1
                    seen += context
                else:
                    past = context - new
                    chunks.append(Chunk(new, past, context >= request.num_prefill_tokens))
            seconds = prices.step_s(StepShape(decoding, 1, (seen,), (seen,), tuple(chunks)))
            return ExecutionTime(1, *[0.0] * 6, 1e3 * seconds, *[0.0] * 7)

    # The parts that it is made of elsewhere are not asked for.
    CostModelPredictor.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return CostModelPredictor


def configuration(job: dict[str, Any], folder: str) -> SimulationConfig:
    trace = TraceRequestGeneratorConfig(
        trace_file=job["trace"],
        date="2026-01-01",
        prefill_scale_factor=1.0,
        decode_scale_factor=1.0,
        time_scale_factor=1.0,
        max_tokens=job["max_model_len"],
    )
    cluster = ClusterConfig(
        num_replicas=job["replicas"],
        replica_config=ReplicaConfig(
            model_name="meta-llama/Llama-3-8B", num_pipeline_stages=1, tensor_parallel_size=job["tensor"]
        ),
        global_scheduler_config=RoundRobinGlobalSchedulerConfig(),
        replica_scheduler_config=SarathiSchedulerConfig(batch_size_cap=job["max_num_seqs"], chunk_size=job["chunk"]),
        cache_config=CacheConfig(num_blocks=job["num_blocks"], block_size=job["block_size"]),
    )
    return SimulationConfig(
        log_level="error",
        cluster_config=cluster,
        request_generator_config=trace,
        execution_time_predictor_config=RandomForrestExecutionTimePredictorConfig(),
        metrics_config=MetricsConfig(write_metrics=False, enable_chrome_trace=False, output_dir=folder),
    )


def main() -> None:
    logging.disable(logging.WARNING)
    job = json.load(sys.stdin)
    ExecutionTimePredictorRegistry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
    ExecutionTimePredictorRegistry.register(ExecutionTimePredictorType.RANDOM_FORREST, predictor_class(pricer(job)))
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.process_time()
        simulator = Simulator(configuration(job, folder))
        requests = [event._request for _, event in simulator._event_queue]
        simulator.run()
        cpu_s = time.process_time() - began_s
    rows = [
        {
            "arrival_s": request.arrived_at,
            "ttft_s": request.prefill_completed_at - request.arrived_at,
            "e2e_s": request.completed_at - request.arrived_at,
            "output_tokens": request.num_decode_tokens,
        }
        for request in requests
    ]
    json.dump({"cpu_s": cpu_s, "simulated_s": simulator._time, "requests": rows}, sys.stdout)


if __name__ == "__main__":
    main()
