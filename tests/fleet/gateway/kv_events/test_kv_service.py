"""A whole gateway that routes by the events of fake publishers."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from argosy.fleet.gateway.config import load_config
from argosy.fleet.gateway.config_kv import TokenizerSettings
from argosy.fleet.gateway.prompt_tokens import load_tokenizer
from argosy.fleet.gateway.service import GatewayService

CONFIG = """
listen: {{port: 0}}
auth: {auth}
store: null
observability: {{access_log: {directory}/access.log}}
resilience: {{drain: {{propagation_s: 0, timeout_s: 5}}}}
models:
  - name: m
    tokenizer: {{model: {tokenizer}, timeout_s: 5}}
    routing: {{policy: prefix_precise, block_tokens: 4, held_token_cost: 0}}
    backends:
      - {{name: a, url: "{a.url}", kind: vllm, kv_events: {{endpoint: "{pa.endpoint}", replay_endpoint: "{pa.replays}"}}}}
      - {{name: b, url: "{b.url}", kind: vllm, kv_events: {{endpoint: "{pb.endpoint}", replay_endpoint: "{pb.replays}"}}}}
"""
TEXT = "a prompt of some length, and some more of it, " * 12


class Fleet:
    def __init__(self, service, path, backends, publishers, tokens, client, chat):
        self.service, self.path = service, path
        self.backends, self.publishers, self.tokens = backends, publishers, tokens
        self._client, self._chat = client, chat

    async def who(self, text=TEXT, key=None):
        """Which backend answers."""
        before = [len(backend.log) for backend in self.backends]
        assert (await self._client.ask(self._chat(text), **({} if key is None else {"key": key}))).status == 200
        grown = zip("ab", before, self.backends, strict=True)
        return next(name for name, num_before, backend in grown if len(backend.log) > num_before)

    def metric(self, name, **labels):
        text = self.service.observability.render("")[0].decode()
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def knows(self, name):
        return self.metric("argosy_gateway_kv_event_blocks", backend=f"m/{name}")

    def trusts(self, name):
        return self.metric("argosy_gateway_kv_events_trusted", backend=f"m/{name}") == 1


@pytest.fixture
async def make_fleet(make_backend, make_publisher, tokenizer_folder, tmp_path, connect, chat, wait_until):
    """Starts two backends, their publishers and a gateway whose events are trusted and whose tokenizer is loaded."""
    services = []

    async def make(*, auth="{mode: open}", tenants="", secrets=None):
        backends = [await make_backend() for _ in "ab"]
        publishers = [await make_publisher() for _ in "ab"]
        path = tmp_path / "gateway.yaml"
        text = CONFIG.format(
            directory=tmp_path,
            tokenizer=tokenizer_folder,
            auth=auth,
            a=backends[0],
            b=backends[1],
            pa=publishers[0],
            pb=publishers[1],
        )
        path.write_text(text + tenants)
        service = GatewayService(load_config(path), secrets or {}, version="0")
        services.append(service)
        await service.start()
        ids = load_tokenizer(str(tokenizer_folder)).encode(f"<user>{TEXT}\n<assistant>")
        client = await connect(f"http://127.0.0.1:{service.port}")
        made = Fleet(service, path, backends, publishers, ids[: len(ids) // 4 * 4], client, chat)
        await wait_until(lambda: made.trusts("a") and made.trusts("b"))
        await wait_until(lambda: service.kv_routes._routes["m"]._tokens._tokenizer is not None)
        return made

    yield make
    for service in services:
        await service.close()


@pytest.fixture
async def fleet(make_fleet):
    return await make_fleet()


async def test_a_prompt_goes_to_who_holds_it_and_not_to_who_held_it(fleet, stored, wait_until):
    blocks = range(100, 100 + len(fleet.tokens) // 4)
    a, b = fleet.publishers
    await b.send(0, [stored(*blocks, tokens=fleet.tokens)])
    await wait_until(lambda: fleet.knows("b") == len(blocks))
    assert [await fleet.who() for _ in range(4)] == ["b"] * 4
    await a.send(0, [stored(*blocks, tokens=fleet.tokens)])
    await b.send(1, [{"type": "BlockRemoved", "block_hashes": list(blocks), "medium": "GPU"}])
    await wait_until(lambda: fleet.knows("b") == 0 and fleet.knows("a") == len(blocks))
    assert [await fleet.who() for _ in range(4)] == ["a"] * 4
    await b.send(2, [stored(*blocks, tokens=fleet.tokens)])
    await a.send(1, [{"type": "AllBlocksCleared"}])
    await wait_until(lambda: fleet.knows("a") == 0 and fleet.knows("b") == len(blocks))
    assert [await fleet.who() for _ in range(4)] == ["b"] * 4
    assert fleet.metric("argosy_gateway_prefix_lookups_total", model="m", by="events") == 12
    assert fleet.metric("argosy_gateway_prefix_lookups_total", model="m", by="sent") == 0
    assert fleet.metric("argosy_gateway_kv_event_messages_total", backend="m/b") == 4, "three, and an empty replay"


async def test_a_tenants_prefix_attracts_that_tenant_alone(make_fleet, stored, wait_until, tmp_path):
    tenants = "tenants:\n" + "".join(
        f"  - id: {name}\n    teams: [{{id: t-{name}, keys: [{{id: k-{name}, key_env: {name.upper()}}}]}}]\n"
        for name in ("acme", "rival")
    )
    keys = {"ACME": "sk-CANARY-acme-0123456789", "RIVAL": "sk-CANARY-rival-0123456789"}
    fleet = await make_fleet(auth=f"{{secret_file: {tmp_path}/secret}}", tenants=tenants, secrets=keys)
    first = await fleet.who(key=keys["ACME"])
    salt = fleet.backends["ab".index(first)].log[-1].document["cache_salt"]
    blocks = range(100, 100 + len(fleet.tokens) // 4)
    extra_keys = [[salt], *[None] * (len(blocks) - 1)]
    await fleet.publishers[1].send(0, [stored(*blocks, tokens=fleet.tokens, extra_keys=extra_keys)])
    await wait_until(lambda: fleet.knows("b") == len(blocks))
    assert [await fleet.who(key=keys["ACME"]) for _ in range(4)] == ["b"] * 4
    # Two backends that hold nothing take turns.
    assert {await fleet.who(key=keys["RIVAL"]) for _ in range(4)} == {"a", "b"}
    assert fleet.metric("argosy_gateway_prefix_lookups_total", by="events") == 9


async def test_who_publishes_no_more_is_judged_by_what_was_sent(fleet, stored, wait_until):
    first = await fleet.who()
    place = "ab".index(first)
    assert await fleet.who("something else") != first
    for publisher in fleet.publishers:
        publisher.stop()
    await wait_until(lambda: not fleet.trusts("a") and not fleet.trusts("b"))
    sent = await fleet.who()
    assert [await fleet.who() for _ in range(4)] == [sent] * 4
    assert fleet.metric("argosy_gateway_prefix_lookups_total", by="sent") == 5
    await fleet.publishers[place].start_anew()
    await fleet.publishers[1 - place].start_anew()
    await wait_until(lambda: fleet.trusts("a") and fleet.trusts("b"), 10.0)


async def test_a_gap_without_replay_is_counted_and_drops_what_was_known(fleet, stored, wait_until):
    b = fleet.publishers[1]
    await b.send(0, [stored(7, tokens=fleet.tokens[:4])], remember=False)
    await wait_until(lambda: fleet.knows("b") == 1)
    await b.send(5, [{"type": "BlockRemoved", "block_hashes": [1]}], remember=False)
    await wait_until(lambda: fleet.knows("b") == 0)
    assert fleet.metric("argosy_gateway_kv_event_gaps_total", backend="m/b") == 1
    await b.send_parts(b"", b"what is this", b"?")
    await wait_until(lambda: fleet.metric("argosy_gateway_kv_event_malformed_total", backend="m/b") == 1)
    assert fleet.metric("argosy_gateway_kv_event_gaps_total", backend="m/a") == 0


async def test_a_backend_that_was_down_is_read_from_the_beginning(fleet, stored, wait_until):
    await fleet.publishers[1].send(0, [stored(7, tokens=fleet.tokens[:4])])
    await wait_until(lambda: fleet.knows("b") == 1)
    replays = fleet.publishers[1].num_replays
    fleet.service.pools._pools["m"].forget_prefixes("m/b")
    assert (fleet.knows("b"), fleet.trusts("b")) == (0, False)
    await wait_until(lambda: fleet.knows("b") == 1 and fleet.trusts("b"))
    assert fleet.publishers[1].num_replays == replays + 1


async def test_backends_come_and_go_and_routing_changes_while_it_runs(fleet, stored, wait_until, make_publisher):
    config = load_config(fleet.path)
    model = config.models[0]
    await fleet.publishers[0].send(0, [stored(7, tokens=fleet.tokens[:4])])
    await fleet.publishers[1].send(0, [stored(7, tokens=fleet.tokens[:4])])
    await wait_until(lambda: fleet.knows("a") == fleet.knows("b") == 1)
    fleet.service.apply(replace(config, models=(replace(model, backends=model.backends[:1]),)), {})
    assert list(fleet.service.kv_routes._routes["m"]._subscriptions) == ["m/a"]
    assert fleet.knows("a") == 1, "who stays is still known"
    assert fleet.metric("argosy_gateway_kv_event_blocks") == 1
    await fleet.publishers[1].until_subscribed()
    await fleet.publishers[1].until_unsubscribed()

    third = await make_publisher()
    moved = replace(
        model.backends[0], kv_events=replace(model.backends[0].kv_events, endpoint=third.endpoint, replay_endpoint=None)
    )
    fleet.service.apply(replace(config, models=(replace(model, backends=(moved, model.backends[1])),)), {})
    await third.until_subscribed()
    await third.send(0, [stored(1, 2, tokens=fleet.tokens[:8])])
    await wait_until(lambda: (fleet.knows("a"), fleet.knows("b")) == (2, 1))

    approximate = replace(
        model,
        tokenizer=None,
        routing=replace(model.routing, policy="prefix_aware", settings={}),
        backends=tuple(replace(each, kv_events=None) for each in model.backends),
    )
    fleet.service.apply(replace(config, models=(approximate,)), {})
    assert not fleet.service.kv_routes._routes
    assert await fleet.who() in "ab"
    fleet.service.apply(config, {})
    await wait_until(lambda: fleet.knows("a") == fleet.knows("b") == 1, 10.0)


async def test_a_tokenizer_that_takes_too_long_or_is_away_falls_back(fleet, wait_until):
    config = load_config(fleet.path)
    settings = TokenizerSettings(config.models[0].tokenizer.model, timeout_s=1e-9)
    fleet.service.apply(replace(config, models=(replace(config.models[0], tokenizer=settings),)), {})
    await wait_until(lambda: fleet.trusts("a") and fleet.trusts("b"))
    await wait_until(lambda: fleet.service.kv_routes._routes["m"]._tokens._tokenizer is not None)
    sent = await fleet.who()
    assert [await fleet.who() for _ in range(3)] == [sent] * 3
    assert fleet.metric("argosy_gateway_prompts_not_tokenized_total", reason="timeout") == 4
    assert fleet.metric("argosy_gateway_prefix_lookups_total", by="sent") == 4
