"""From the model a client names to the pool that answers: aliases, rules, degradation, fallbacks (a `ModelChooser`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from argosy.errors import ConfigError
from argosy.fleet.gateway.backend_kinds import BackendKind
from argosy.fleet.gateway.config_models import DegradationSettings, ModelSettings, RuleSettings
from argosy.fleet.gateway.estimator import prompt_tokens
from argosy.fleet.gateway.exchange import AttemptResult, Exchange, Principal
from argosy.fleet.gateway.stages import Route
from argosy.fleet.policies.degradation import Concession, DegradationLadder, LadderSettings, kv_pressure
from argosy.fleet.policies.model_choice import (
    FallbackReason,
    ModelCard,
    ModelCatalogue,
    ModelPicker,
    ModelRequest,
    Rule,
    RulePicker,
)
from argosy.fleet.policies.routing.replica_state import ReplicaState

DEGRADED_HEADER = "x-argosy-degraded"
_REASONS: Mapping[AttemptResult, FallbackReason] = MappingProxyType(
    {
        AttemptResult.FIRST_BYTE_TIMEOUT: FallbackReason.TIMEOUT,
        AttemptResult.IDLE_TIMEOUT: FallbackReason.TIMEOUT,
        AttemptResult.THROTTLED: FallbackReason.OVERLOAD,
        AttemptResult.BUSY: FallbackReason.OVERLOAD,
        AttemptResult.SERVER_ERROR: FallbackReason.ERROR,
        AttemptResult.CONNECT_ERROR: FallbackReason.ERROR,
        AttemptResult.CUT: FallbackReason.ERROR,
    }
)
# The members that bound an answer, by kind of endpoint; the first is the one to add where there is none.
_BOUNDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "chat": ("max_tokens", "max_completion_tokens"),
        "completion": ("max_tokens",),
        "responses": ("max_output_tokens",),
        "messages": ("max_tokens",),
    }
)
# The only engine that takes the length of its drafts from the request.
_NO_DRAFTS = {BackendKind.LLAMA_CPP: {"speculative.n_max": b"0"}}


class ReplicaSource(Protocol):
    """What the chooser asks of the backends."""

    def replicas(self, pool: str) -> Sequence[ReplicaState]:
        """What the router sees of a pool."""
        ...


class ConfiguredModels:
    """The models of a configuration. Pools bear their models' names.

    Pressure is looked at when a request arrives; a request keeps what was decided then. What was given up is told in
    `x-argosy-degraded`.

    Raises:
        ConfigError: models contradict each other, or one is to give up what its backends cannot.
    """

    def __init__(
        self,
        models: Sequence[ModelSettings],
        replicas: ReplicaSource,
        now_s: Callable[[], float],
        *,
        pickers: Sequence[ModelPicker] = (RulePicker(),),
        max_fallbacks: int = 3,
    ) -> None:
        self.catalogue = ModelCatalogue([_card(model) for model in models], pickers, max_fallbacks=max_fallbacks)
        self._replicas = replicas
        self._now_s = now_s
        self._degradation = {model.name: model.degradation for model in models if model.degradation is not None}
        self._ladders = {name: DegradationLadder(_ladder(given)) for name, given in self._degradation.items()}
        self._no_drafts = {model.name: _no_drafts(model) for model in models if model.name in self._degradation}

    def choose(self, exchange: Exchange) -> Route:
        """The route of a request whose `model`, `document` and `principal` are known.

        Raises:
            UnknownModel: nobody serves the model, or this caller may not know of it.
        """
        return self._degraded(exchange, self.catalogue.choose(self._request(exchange)).name, frozenset())

    def fallback(self, exchange: Exchange, failed: Route, result: AttemptResult, *, context_too_long: bool) -> Route | None:
        """Where to go when `failed` gave no answer and will not be tried again; None if that is final."""
        reason = FallbackReason.CONTEXT_LENGTH if context_too_long else _REASONS.get(result)
        if reason is None:
            return None
        tried = exchange.tags.setdefault("models_tried", [])
        tried.append(failed.pool)
        card = self.catalogue.fallback(tried, reason, exchange.prompt_tokens)
        return None if card is None else self._degraded(exchange, card.name, frozenset(tried))

    def visible_models(self, principal: Principal) -> Sequence[str]:
        """Names that `principal` may ask for, in the order of the configuration, after its own aliases."""
        names = self.catalogue.visible(principal.models)
        return [*(alias for alias in principal.aliases if alias not in names), *names]

    def active(self, pool: str) -> frozenset[Concession]:
        """What a model gives up at the moment, for metrics."""
        ladder = self._ladders.get(pool)
        return frozenset() if ladder is None else ladder.update(self._pressure(pool), self._now_s())

    def _request(self, exchange: Exchange) -> ModelRequest:
        caller, catalogue = exchange.caller, self.catalogue
        headers: dict[str, str] = {}
        if catalogue.looks_at_headers:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.headers.items()}
        return ModelRequest(
            exchange.model,
            prompt_tokens(exchange.document) if catalogue.looks_at_length else 0,
            caller.tier,
            headers,
            last_user_text(exchange.document) if catalogue.looks_at_text else "",
            caller.aliases,
            caller.models,
        )

    def _degraded(self, exchange: Exchange, pool: str, tried: frozenset[str]) -> Route:
        """The route to `pool`, or to the smaller model that stands in for it, with what else each of them gives up."""
        active = self.active(pool)
        if not active:
            exchange.response_headers.pop(DEGRADED_HEADER, None)
            return Route(pool)
        given_up: set[Concession] = set()
        passed = {pool, *tried}
        while Concession.SMALLER_MODEL in active:
            name = self._degradation[pool].smaller_model
            smaller = pool if name is None else self.catalogue.card(name).name
            if smaller in passed:
                break
            given_up.add(Concession.SMALLER_MODEL)
            passed.add(smaller)
            pool, active = smaller, self.active(smaller)
        edits: dict[str, bytes] = {}
        if Concession.SHORTER_CONTEXT in active:
            shorter = _shorter_answer(exchange, self._degradation[pool].max_output_tokens)
            if shorter:
                given_up.add(Concession.SHORTER_CONTEXT)
                edits.update(shorter)
        if Concession.NO_SPECULATION in active and exchange.endpoint.kind in _BOUNDS:
            given_up.add(Concession.NO_SPECULATION)
            edits.update(self._no_drafts[pool])
        if given_up:
            exchange.response_headers[DEGRADED_HEADER] = ",".join(sorted(given_up))
        else:
            exchange.response_headers.pop(DEGRADED_HEADER, None)
        return Route(pool, edits)

    def _pressure(self, pool: str) -> float:
        return kv_pressure(self._replicas.replicas(pool))


def last_user_text(document: Mapping[str, Any]) -> str:
    """What the user said last: the last message of role "user", else the prompt or input."""
    messages = document.get("messages")
    if not isinstance(messages, list):
        messages = document.get("input")
    if isinstance(messages, list):
        for message in reversed(messages):
            if isinstance(message, dict) and message.get("role") == "user":
                return _text(message.get("content"))
    return _text(document.get("prompt") or document.get("input"))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n".join(part for part in parts if isinstance(part, str))


def _shorter_answer(exchange: Exchange, max_output_tokens: int) -> dict[str, bytes]:
    """Edits that bound the answer; none if it is bounded already, or is to be longer at least. Lowers the bound known."""
    document, names = exchange.document, _BOUNDS.get(exchange.endpoint.kind, ())
    least = document.get("min_tokens")
    if not names or (isinstance(least, int) and least > max_output_tokens):
        return {}
    present = {name: document[name] for name in names if isinstance(document.get(name), int)}
    too_long = [name for name, value in present.items() if value > max_output_tokens]
    if present and not too_long:
        return {}
    exchange.max_output_tokens = max(
        (min(value, max_output_tokens) for value in present.values()), default=max_output_tokens
    )
    return dict.fromkeys(too_long or names[:1], b"%d" % max_output_tokens)


def _card(model: ModelSettings) -> ModelCard:
    lengths = [backend.max_model_len for backend in model.backends]
    known = [length for length in lengths if length is not None]
    return ModelCard(
        model.name,
        model.aliases,
        tuple(_rule(rule) for rule in model.rules),
        model.fallbacks,
        frozenset(FallbackReason(reason) for reason in model.fallback_on),
        max(known) if len(known) == len(lengths) else None,
    )


def _rule(rule: RuleSettings) -> Rule:
    return Rule(
        rule.model,
        rule.min_prompt_tokens,
        rule.max_prompt_tokens,
        frozenset(rule.tiers),
        None if rule.header is None else (rule.header.name, rule.header.value),
        rule.keywords,
    )


def _ladder(given: DegradationSettings) -> LadderSettings:
    above = {
        Concession.SHORTER_CONTEXT: given.shorter_context_above,
        Concession.NO_SPECULATION: given.no_speculation_above,
        Concession.SMALLER_MODEL: given.smaller_model_above,
    }
    return LadderSettings({step: value for step, value in above.items() if value is not None}, given.hysteresis)


def _no_drafts(model: ModelSettings) -> Mapping[str, bytes]:
    """The edits that keep a model's backends from speculating."""
    if model.degradation is None or model.degradation.no_speculation_above is None:
        return {}
    for backend in model.backends:
        if backend.kind not in _NO_DRAFTS:
            raise ConfigError(
                f"no_speculation_above of model {model.name!r}: backend {backend.name!r} is of kind {backend.kind!r}, whose "
                f"requests cannot ask for that; only {', '.join(_NO_DRAFTS)} can",
                param="no_speculation_above",
            )
    return _NO_DRAFTS[BackendKind(model.backends[0].kind)]
