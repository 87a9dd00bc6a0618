"""The CPU kernels on the real models: their logits beside those of fp32 on the dequantised weights, and their bits."""

from __future__ import annotations

import math

import pytest

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.cpu_executor import CpuExecutor
from argosy.engine.llm import LLM

pytestmark = [pytest.mark.model, pytest.mark.slow]

TEXT = """The harbour lay quiet under a thin morning fog. Two fishermen were mending their nets on the quay, and a boy of
perhaps ten years sat on an upturned crate and watched them without a word. "You'll have to learn this some day," said the
older man. "A net that is not mended in the evening catches nothing in the morning." The boy nodded. He had heard it before,
from his father, who had gone out in a boat much like these and had not come back. Out at sea a bell rang, slowly, as the
swell moved the buoy. Ships entering the harbour in fog steer by that bell, and by the light on the mole, which on a clear
night can be seen for eleven miles. In 1871 the light was an oil lamp with a lens of ground glass; today it is electric, and
nobody lives in the tower any more. To compute the distance at which a light can be seen, one takes the square root of its
height above the water in metres, multiplies it by about 3.6, and obtains kilometres. A lamp at 25 metres is thus visible at
18 kilometres to an eye at sea level. Water boils at 100 degrees Celsius at sea level, and at a lower temperature on a
mountain, because the air there presses less. The capital of France is Paris, and that of Japan is Tokyo."""


def scored(name: str, **settings) -> list:
    """The scores of the text's tokens, the first excepted, each with the most likely token."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    with LLM(name, max_model_len=640, num_blocks_override=64, **settings) as llm:
        assert isinstance(llm._parts.step_loop._executor, CpuExecutor) == (settings.get("executor") == "kernels")
        (output,) = llm.generate(TEXT, params)
    return output.prompt_logprobs[1:]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "weights", "top1_agreement", "loss_nats"),
    [
        ("smollm2-135m", "stored", 0.94, 0.01),
        ("smollm2-135m", "int8", 0.93, 0.03),
        ("gemma3-270m", "stored", 0.94, 0.01),
        ("gemma3-270m", "int8", 0.93, 0.03),
    ],
)
def test_scores_come_near_those_of_fp32(name, weights, top1_agreement, loss_nats):
    ours = scored(name, executor="kernels", weights=weights)
    reference = scored(name, executor="torch")
    assert len(ours) == len(reference) > 280
    agreeing = sum(a.top[0][0] == b.top[0][0] for a, b in zip(ours, reference, strict=True))
    assert agreeing >= top1_agreement * len(ours)
    loss = math.fsum(b.logprob - a.logprob for a, b in zip(ours, reference, strict=True)) / len(ours)
    assert abs(loss) <= loss_nats


def test_the_bits_of_an_answer_do_not_depend_on_company_chunks_or_threads():
    params = SamplingParams(temperature=0.0, max_tokens=24, logprobs=3, ignore_eos=True)
    prompts = [TEXT[:400], "Once upon a time", TEXT[500:620], "2, 4, 6, 8,"]
    answers = []
    for settings in ({"threads": 1}, {"threads": 2}, {"threads": 3, "max_num_batched_tokens": 24, "max_num_seqs": 4}):
        company = prompts if answers else prompts[:1]
        with LLM("smollm2-135m", executor="kernels", max_model_len=640, num_blocks_override=200, **settings) as llm:
            answers.append(llm.generate(company, params)[0].completions[0])
    assert answers[0].logprobs == answers[1].logprobs == answers[2].logprobs
