import asyncio
import subprocess
import sys
import threading

import pytest

from argosy.errors import InvalidRequest, ModelFileError
from argosy.fleet.gateway.config_kv import TokenizerSettings
from argosy.fleet.gateway.exchange import Endpoint, Exchange, Principal
from argosy.fleet.gateway.prompt_tokens import NotText, PromptTokens, load_tokenizer, prompt_tokens
from argosy.fleet.policies.routing.request import chain_root, token_block_hashes

CHAT, COMPLETION = Endpoint("/v1/chat/completions", "chat"), Endpoint("/v1/completions", "completion")
EMBEDDING = Endpoint("/v1/embeddings", "embedding")


@pytest.fixture
def tokenizer(tokenizer_folder):
    return load_tokenizer(str(tokenizer_folder))


@pytest.fixture
def make():
    made = []

    def make(tokenizer, **settings):
        def load(name):
            if isinstance(tokenizer, Exception):
                raise tokenizer
            return tokenizer

        made.append(PromptTokens(TokenizerSettings("m", **settings), load=load))
        return made[-1]

    yield make
    for each in made:
        each.close()


def asked(document, endpoint=CHAT, salt=""):
    exchange = Exchange(endpoint, "POST", endpoint.route, {}, b"", "r", "x", 0.0)
    exchange.document = document
    exchange.principal = Principal("k", "t", cache_salt=salt)
    return exchange


async def blocks(tokens, exchange, block_tokens=4):
    waiting = tokens.prepare(exchange, "pool", block_tokens)
    if waiting is not None:
        await waiting
    return exchange.token_blocks["pool"]


async def loaded(tokens, wait_until):
    await wait_until(lambda: tokens._tokenizer is not None or tokens._has_failed)


def messages(*texts, role="user"):
    return [{"role": role, "content": text} for text in texts]


def test_messages_become_what_the_template_says(tokenizer):
    def text(**document):
        return tokenizer.decode(prompt_tokens(tokenizer, "chat", document, 1000))

    assert text(messages=messages("hi")) == "<user>hi\n<assistant>"
    assert text(messages=messages("hi"), add_generation_prompt=False) == "<user>hi\n"
    assert text(messages=messages("a"), tools=[{}, {}]) == "<user>a\n[2]<assistant>"
    assert text(messages=messages("a"), tools=[{}, {}], tool_choice="none") == "<user>a\n<assistant>"
    assert text(messages=messages("be kind", role="developer")) == "<system>be kind\n<assistant>"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text(messages=[{"role": "user", "content": parts, "name": None}]) == "<user>a\nb\n<assistant>"


def test_prompts_are_texts_or_tokens(tokenizer):
    def tokens(prompt):
        return list(prompt_tokens(tokenizer, "completion", {"prompt": prompt}, 1000))

    assert tokens("ab") == tokens(["ab"]) == tokenizer.encode("ab")
    assert tokens([5, 6]) == tokens([[5, 6]]) == [5, 6]


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ("chat", {"messages": "hi"}),
        ("chat", {"messages": ["hi"]}),
        ("chat", {}),
        ("chat", {"messages": messages("hi"), "chat_template": "{{ 1 }}"}),
        ("chat", {"messages": messages("hi"), "add_special_tokens": "yes"}),
        ("completion", {"prompt": ["a", "b"]}),
        ("completion", {"prompt": [1, True]}),
        ("completion", {"prompt": []}),
        ("completion", {"prompt": 3}),
        ("completion", {"prompt": "a", "truncate_prompt_tokens": 3}),
    ],
)
def test_what_is_not_one_text_by_the_models_own_template(tokenizer, kind, document):
    with pytest.raises(NotText):
        prompt_tokens(tokenizer, kind, document, 1000)


def test_of_a_long_text_the_tokens_before_the_cut_are_the_same(tokenizer):
    text = "many words and more words " * 100
    whole = tokenizer.encode(text)
    some = list(prompt_tokens(tokenizer, "completion", {"prompt": text}, 1000))
    assert 0 < len(some) <= 1000
    assert some == whole[: len(some)]
    assert list(prompt_tokens(tokenizer, "completion", {"prompt": text}, 100)) == []


async def test_hashes_are_those_of_the_tenants_own_prefixes(make, tokenizer, wait_until):
    tokens = make(tokenizer)
    await loaded(tokens, wait_until)
    ids = tokenizer.encode("<user>hello\n<assistant>")
    for salt in ("", "t1"):
        found = await blocks(tokens, asked({"messages": messages("hello")}, salt=salt))
        assert found == token_block_hashes(ids, 4, chain_root(salt)) != ()
    assert tokens.num_without == {}


async def test_requests_without_tokens_are_counted_by_reason(make, tokenizer, wait_until):
    tokens = make(tokenizer)
    await loaded(tokens, wait_until)
    assert await blocks(tokens, asked({"input": "hi"}, EMBEDDING)) == ()
    assert await blocks(tokens, asked({"messages": []}, Endpoint("/v1/responses", "responses"))) == ()
    assert await blocks(tokens, asked({"prompt": ["a", "b"]}, COMPLETION)) == ()
    assert tokens.num_without == {"unsupported": 3}

    class Refuses:
        def encode(self, text, **_):
            raise (InvalidRequest if text == "a" else RuntimeError)("no")

    refusing = make(Refuses())
    await loaded(refusing, wait_until)
    assert await blocks(refusing, asked({"prompt": "a"}, COMPLETION)) == ()
    assert await blocks(refusing, asked({"prompt": "b"}, COMPLETION)) == ()
    assert refusing.num_without == {"refused": 2}


async def test_one_that_is_slow_or_away_holds_nobody_up(make, tokenizer, wait_until):
    let_go, entered = threading.Event(), threading.Event()

    class Slow:
        def encode(self, text, **_):
            entered.set()
            let_go.wait(10)
            return [1] * 8

    tokens = make(Slow(), timeout_s=0.05, max_pending=2)
    await loaded(tokens, wait_until)
    try:
        first = asked({"prompt": "a"}, COMPLETION)
        assert await blocks(tokens, first) == ()
        assert entered.is_set()
        # One is under way and one waits: a third would only wait as well.
        second = asyncio.create_task(blocks(tokens, asked({"prompt": "b"}, COMPLETION)))
        await asyncio.sleep(0)
        assert await blocks(tokens, asked({"prompt": "c"}, COMPLETION)) == ()
        assert await second == ()
        assert tokens.num_without == {"timeout": 2, "busy": 1}
    finally:
        let_go.set()
    await wait_until(lambda: tokens._num_pending == 0)
    assert await blocks(tokens, asked({"prompt": "d"}, COMPLETION)) == token_block_hashes([1] * 8, 4, chain_root(""))
    assert first.token_blocks["pool"] == (), "what came too late changes nothing"


async def test_a_tokenizer_that_cannot_be_loaded_is_said_once(make, wait_until, caplog):
    tokens = make(ModelFileError("damaged"))
    await loaded(tokens, wait_until)
    assert await blocks(tokens, asked({"prompt": "a"}, COMPLETION)) == ()
    assert tokens.num_without == {"failed": 1}
    assert "no tokenizer" in caplog.text


def test_it_needs_no_torch(tokenizer_folder):
    program = (
        "import sys; from argosy.fleet.gateway.prompt_tokens import load_tokenizer;"
        "print(load_tokenizer(sys.argv[1]).encode('a')); assert not {'torch', 'transformers', 'numba'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tokenizer_folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
