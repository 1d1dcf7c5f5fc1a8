"""Names to classes: how an option's value finds the code behind it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping that classes enter under the name users type.

    >>> scores = Registry("attention score")
    >>> @scores.register("dot")
    ... class Dot: ...
    >>> scores["dot"].__name__
    'Dot'
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Enter the decorated class under `name`; a name is taken once."""

        def enter(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.what} '{name}' is registered twice")
            self._entries[name] = entry
            return entry

        return enter

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"no {self.what} '{name}'; there are: {', '.join(self._entries)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
