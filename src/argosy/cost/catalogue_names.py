"""Looking things up by name: exact after folding case and separators, and helpful when there is nothing of that name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from argosy.errors import ConfigError

T = TypeVar("T")

_SEPARATORS = str.maketrans("", "", " -_/:")
_SUGGESTIONS = 6


def fold(name: str) -> str:
    """What two spellings of one name share: "H100-SXM" and "h100_sxm". Dots and digits count, so 2.5-3B is not 25-3B."""
    return name.casefold().translate(_SEPARATORS)


class Directory(Generic[T]):
    """Entries under their names and aliases. Immutable once built.

    Raises:
        ConfigError: two entries claim one name.
    """

    def __init__(self, kind: str, entries: Iterable[tuple[str, tuple[str, ...], T]]) -> None:
        self._kind = kind
        self._titles: list[str] = []
        self._entries: list[T] = []
        self._by_name: dict[str, int] = {}
        for title, aliases, entry in entries:
            position = len(self._entries)
            for spelling in (title, *aliases):
                taken = self._by_name.setdefault(fold(spelling), position)
                if taken != position:
                    raise ConfigError(f"{kind} name {spelling!r} belongs to both {self._titles[taken]} and {title}")
            self._titles.append(title)
            self._entries.append(entry)

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> T:
        """The entry of that name or alias.

        Raises:
            ConfigError: no entry has it; names those that come near.
        """
        position = self._by_name.get(fold(name))
        if position is None:
            near = self.near(name)
            some = f"the catalogue has {len(self._titles)}, among them {', '.join(self._titles[:_SUGGESTIONS])}"
            hint = f"did you mean {', '.join(near)}?" if near else some
            raise ConfigError(f"no {self._kind} is called {name!r}; {hint}")
        return self._entries[position]

    def near(self, name: str) -> list[str]:
        """Titles that contain the name or look like it, the likeliest first."""
        wanted = fold(name)
        inside = [spelling for spelling in self._by_name if wanted and wanted in spelling]
        alike = difflib.get_close_matches(wanted, self._by_name, n=_SUGGESTIONS, cutoff=0.7)
        positions = dict.fromkeys(self._by_name[spelling] for spelling in (*inside, *alike))
        return [self._titles[position] for position in positions][:_SUGGESTIONS]
