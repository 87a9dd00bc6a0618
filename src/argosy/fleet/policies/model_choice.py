"""Which model answers: the one asked for, another by rule, or the next one when it fails.

    name asked for -> the key's own aliases -> names and aliases of the catalogue -> pickers, until none moves it on

A **picker** looks at the request and the model it has arrived at, and may name another. `RulePicker` goes by the rules of
the configuration; a classifier, the first stage of a cascade or a bandit is another picker, put beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from argosy.errors import ConfigError, UnknownModel


class FallbackReason(StrEnum):
    """Why a model gave no answer. `ERROR`: its backends failed; `OVERLOAD`: they or the queue have no room for it."""

    TIMEOUT = "timeout"
    OVERLOAD = "overload"
    ERROR = "error"
    CONTEXT_LENGTH = "context_length"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a choice may go by.

    Attributes:
        model: as the client wrote it.
        prompt_tokens: as estimated.
        tier: of the key.
        headers: of the request, by lower-case name; empty if no rule looks for any.
        text: last message of the user, for keywords; "" if no rule looks for any (`ModelCatalogue.looks_at_text`).
        aliases: of the key, over those of the catalogue.
        allowed: names that the key may ask for, as it wrote them or as they are; None for all.
    """

    model: str
    prompt_tokens: int = 0
    tier: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Sends a request on to `model` if every condition that is given holds.

    Attributes:
        min_prompt_tokens, max_prompt_tokens: ends included.
        tiers: one of them.
        header: name and value; None as value for any.
        keywords: one of them occurs in the text, ignoring case.
    """

    model: str
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    tiers: frozenset[str] = frozenset()
    header: tuple[str, str | None] | None = None
    keywords: tuple[str, ...] = ()

    def holds(self, request: ModelRequest) -> bool:
        """Whether every condition does."""
        if self.min_prompt_tokens is not None and request.prompt_tokens < self.min_prompt_tokens:
            return False
        if self.max_prompt_tokens is not None and request.prompt_tokens > self.max_prompt_tokens:
            return False
        if self.tiers and request.tier not in self.tiers:
            return False
        if self.header is not None:
            value = request.headers.get(self.header[0].lower())
            if value is None or self.header[1] not in (None, value):
                return False
        text = request.text.casefold() if self.keywords else ""
        return not self.keywords or any(word.casefold() in text for word in self.keywords)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model that is offered.

    Attributes:
        rules: the first that holds decides.
        fallbacks: names or aliases to try in turn when this model fails for a reason in `fallback_on`.
        max_model_len: longest sequence that any of its backends takes, None if unknown.
    """

    name: str
    aliases: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    fallbacks: tuple[str, ...] = ()
    fallback_on: frozenset[FallbackReason] = frozenset(FallbackReason)
    max_model_len: int | None = None


class ModelPicker(Protocol):
    """Moves a request from one model on to another."""

    def pick(self, request: ModelRequest, card: ModelCard) -> str | None:
        """Name or alias of the model to go on to, or None to stay. Mutates nothing of either argument."""
        ...


@dataclass(frozen=True, slots=True)
class RulePicker:
    """Goes by the rules of the model's card."""

    def pick(self, request: ModelRequest, card: ModelCard) -> str | None:
        """The model of the first rule that holds."""
        for rule in card.rules:
            if rule.holds(request):
                return rule.model
        return None


class ModelCatalogue:
    """Every model on offer. Holds no state: the same request gets the same answer.

    Attributes:
        looks_at_text, looks_at_headers, looks_at_length: whether any rule goes by keywords, by a header, or by the length of
            the prompt.

    Args:
        max_fallbacks: models tried after the first, for one request.

    Raises:
        ConfigError: a name is taken twice, or a rule or fallback names a model that there is not.
    """

    def __init__(
        self,
        cards: Sequence[ModelCard],
        pickers: Sequence[ModelPicker] = (RulePicker(),),
        *,
        max_fallbacks: int = 3,
    ) -> None:
        self.cards = tuple(cards)
        self._pickers = tuple(pickers)
        self._max_fallbacks = max_fallbacks
        self._by_name: dict[str, ModelCard] = {}
        for card in cards:
            for name in (card.name, *card.aliases):
                if name in self._by_name:
                    raise ConfigError(
                        f"model name {name!r} is taken twice, by {self._by_name[name].name!r} and {card.name!r}"
                    )
                self._by_name[name] = card
        for card in cards:
            for name in (*card.fallbacks, *(rule.model for rule in card.rules)):
                if name not in self._by_name:
                    raise ConfigError(f"model {card.name!r} refers to {name!r}, which is no name or alias of a model")
        rules = [rule for card in cards for rule in card.rules]
        self.looks_at_text = any(rule.keywords for rule in rules)
        self.looks_at_headers = any(rule.header is not None for rule in rules)
        self.looks_at_length = any(
            rule.min_prompt_tokens is not None or rule.max_prompt_tokens is not None for rule in rules
        )

    def card(self, name: str) -> ModelCard:
        """The card of a name or alias; raises `KeyError` for any other."""
        return self._by_name[name]

    def choose(self, request: ModelRequest) -> ModelCard:
        """The model that should answer.

        A picker that leads back to a model already passed is not followed, so that every choice ends.

        Raises:
            UnknownModel: there is no such model, or the key may not ask for it; which of the two is not told.
        """
        card = self._by_name.get(request.aliases.get(request.model, request.model))
        if card is None or not _may_ask(request, card):
            shown = request.model if len(request.model) <= 100 else request.model[:99] + "…"
            raise UnknownModel(
                f"the model {shown!r} does not exist or this key may not use it; GET /v1/models lists those it may",
                param="model",
            )
        passed = {card.name}
        while (following := self._next(request, card)) is not None and following.name not in passed:
            card = following
            passed.add(card.name)
        return card

    def fallback(self, tried: Sequence[str], reason: FallbackReason, prompt_tokens: int) -> ModelCard | None:
        """The model to try after those in `tried`, whose last one failed for `reason`; None if there is none.

        First the fallbacks of the model that failed last, then those of the one before it: a chain of chains, in which no
        model comes twice. One whose context is known to be too short for the prompt is passed over, and after
        `CONTEXT_LENGTH` so is one whose context is no longer than that of the model that failed.
        """
        if len(tried) > self._max_fallbacks:
            return None
        least = prompt_tokens
        if reason is FallbackReason.CONTEXT_LENGTH:
            least = max(least, self._by_name[tried[-1]].max_model_len or 0)
        gone = {self._by_name[name].name for name in tried}
        for name in reversed(tried):
            card = self._by_name[name]
            for candidate in map(self._by_name.__getitem__, card.fallbacks if reason in card.fallback_on else ()):
                fits = candidate.max_model_len is None or candidate.max_model_len > least
                if candidate.name not in gone and fits:
                    return candidate
        return None

    def visible(self, allowed: Iterable[str] | None) -> list[str]:
        """Names and aliases that a key may ask for, in order; None allows all."""
        if allowed is None:
            return list(self._by_name)
        may = frozenset(allowed)
        return [name for name, card in self._by_name.items() if name in may or card.name in may]

    def _next(self, request: ModelRequest, card: ModelCard) -> ModelCard | None:
        for picker in self._pickers:
            name = picker.pick(request, card)
            if name is not None and name in self._by_name:
                return self._by_name[name]
        return None


def _may_ask(request: ModelRequest, card: ModelCard) -> bool:
    return request.allowed is None or request.model in request.allowed or card.name in request.allowed
