from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from argosy.engine.build import EngineParts
from argosy.engine.client import EngineInfo
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.llm import LLM
from argosy.errors import ConfigError, ContextLengthExceeded, EngineUnavailable, InvalidRequest

INFO = EngineInfo(
    "toy", "toy", 128, 300, 4, 64, 8, 2048, 100, "float32", "float32", "cpu", False, True, False, {"temperature": 0.5}
)


@pytest.fixture
def make_llm(make_rig):
    def make(script=None, max_waiting: int = 100, **settings):
        rig = make_rig(**settings) if script is None else make_rig(script, **settings)
        return LLM.from_parts(EngineParts(rig.loop, rig.admission, replace(INFO, max_waiting=max_waiting), rig.clock)), rig

    return make


def texts(outputs) -> list[str]:
    return [c.text for o in outputs for c in o.completions]


def test_one_prompt_or_several_as_text_or_ids(make_llm):
    llm, rig = make_llm()
    assert texts(llm.generate("hello")) == ["HELLO"]
    assert texts(llm.generate(list(b"hello"))) == ["HELLO"]
    assert texts(llm.generate(["a", list(b"b"), "c"])) == ["A", "B", "C"]
    assert texts(llm.generate(np.frombuffer(b"hello", dtype=np.uint8))) == ["HELLO"]
    assert llm.generate([]) == []
    rig.assert_nothing_is_held()


def test_an_output_tells_everything(make_llm):
    llm, _ = make_llm()
    params = SamplingParams(n=2, logprobs=0, prompt_logprobs=0, stop=("LL",))
    (output,) = llm.generate("hello", params)
    assert (output.prompt, output.prompt_token_ids, output.num_cached_tokens) == ("hello", tuple(b"hello"), 0)
    assert [p and p.token_id for p in output.prompt_logprobs] == [None, *b"ello"]
    assert [(c.index, c.text, c.finish_reason, c.stop_reason, c.error) for c in output.completions] == [
        (0, "0HE", "stop", "LL", ""),
        (1, "1HE", "stop", "LL", ""),
    ]
    assert [[p.token_id for p in c.logprobs] for c in output.completions] == [list(b"0HELL"), list(b"1HELL")]


def test_parameters_for_all_for_each_and_from_the_checkpoint(make_llm):
    llm, rig = make_llm()
    assert texts(llm.generate(["abc", "def"], SamplingParams(max_tokens=1))) == ["A", "D"]
    each = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)]
    assert texts(llm.generate(["abc", "def"], each)) == ["A", "DE"]
    with pytest.raises(InvalidRequest, match="2 entries for 1"):
        llm.generate("abc", each)
    llm.generate("abc")
    assert [new.params.temperature for new in rig.executor.known.values()] == [0.5]


def test_a_bad_prompt_is_refused_before_anything_runs_and_its_place_is_told(make_llm):
    llm, rig = make_llm()
    with pytest.raises(ContextLengthExceeded) as caught:
        llm.generate(["fine", "x" * 200])
    assert caught.value.__notes__ == ["in prompt 1 (counted from 0)"]
    with pytest.raises(InvalidRequest):
        llm.generate(["fine", ""])
    assert rig.executor.num_steps == 0


@pytest.mark.parametrize("prompts", [[1.5], [["a"]], ["fine", [None]], [None]])
def test_what_is_neither_text_nor_ids_is_refused(make_llm, prompts):
    llm, _ = make_llm()
    with pytest.raises(InvalidRequest, match="neither a text nor a list of token ids"):
        llm.generate(prompts)


def test_more_prompts_than_may_wait_are_fed_as_places_come_free(make_llm):
    llm, rig = make_llm(max_waiting=3)
    prompts = [f"prompt {i}" for i in range(50)]
    assert texts(llm.generate(prompts)) == [p.upper() for p in prompts]
    assert max(s.num_waiting for s in rig.sink.steps) <= 3
    rig.assert_nothing_is_held()


def test_chat_renders_one_conversation_or_several(make_llm):
    llm, _ = make_llm()
    hello, bye = [{"role": "user", "content": "hello"}], [{"role": "user", "content": "bye"}]
    (output,) = llm.chat(hello)
    assert output.prompt == "<user>hello<assistant>"
    assert texts([output]) == ["<USER>HELLO<ASSISTANT>"]
    assert texts(llm.chat([hello, bye])) == ["<USER>HELLO<ASSISTANT>", "<USER>BYE<ASSISTANT>"]


def test_a_failed_sequence_is_told_and_the_others_are_answered(make_llm):
    llm, rig = make_llm()
    rig.executor.poisoned.add(tuple(b"bad"))
    bad, good = llm.generate(["bad", "good"])
    assert (bad.completions[0].finish_reason, bad.completions[0].error) == ("error", "logits are not finite")
    assert good.completions[0].text == "GOOD"


def test_a_lost_engine_raises_now_and_later(make_llm):
    llm, rig = make_llm()
    rig.executor.fail_at = 2
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="device lost"):
            llm.generate("hello")


def test_an_interrupt_while_the_bar_is_drawn_leaves_nothing_running(make_llm, monkeypatch):
    llm, rig = make_llm()

    def interrupt(self, count):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("argosy.engine.progress_bar.ProgressBar.advance_to", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["hello", "world"])
    rig.assert_nothing_is_held()
    assert texts(llm.generate("again")) == ["AGAIN"]


def test_closing_frees_the_executor_once_and_ends_generation(make_llm):
    llm, rig = make_llm()
    with llm:
        pass
    llm.close()
    assert rig.executor.is_closed
    with pytest.raises(EngineUnavailable, match="closed"):
        llm.generate("hello")


def test_the_progress_bar_goes_to_stderr_and_reaches_the_end(make_llm, capsys):
    llm, _ = make_llm()
    llm.generate(["a", "b"], show_progress=True)
    captured = capsys.readouterr()
    assert "2/2" in captured.err
    assert captured.out == ""
    llm.generate(["a", "b"])
    assert capsys.readouterr().err == ""


def test_an_unknown_setting_is_refused_before_the_model_is_looked_for():
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        LLM("no such model", max_num_seq=4)


@pytest.mark.parametrize(
    ("given", "share", "tokens"),
    [
        ({}, 1.0, 2048),
        ({"max_num_seqs": 3000}, 1.0, 3000),
        ({"max_num_batched_tokens": 100}, 1.0, 100),
        ({"prefill_share": 0.25}, 0.25, 2048),
        ({"device": "cuda"}, 1.0, 8192),
    ],
)
def test_prompts_may_fill_whole_steps_unless_the_settings_say_otherwise(monkeypatch, given, share, tokens):
    seen = []
    monkeypatch.setattr("argosy.engine.llm.build_parts", lambda args, **_: seen.append(args))
    monkeypatch.setattr(LLM, "_take_parts", lambda self, parts: None)
    LLM("m", **given)
    assert (seen[0].prefill_share, seen[0].step_budget_tokens) == (share, tokens)


def test_the_package_offers_it_lazily():
    code = (
        "import sys, argosy; assert 'torch' not in sys.modules and 'argosy.engine' not in sys.modules;"
        "from argosy import LLM, SamplingParams; assert LLM.__module__ == 'argosy.engine.llm';"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
