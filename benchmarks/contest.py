"""Contestants take turns at the same work, round after round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rich.console import Console
from rich.progress import track


def take_turns(
    contestants: Mapping[str, Callable[[], float]], rounds: int, *, once: Collection[str] = ()
) -> dict[str, list[float]]:
    """Run each contestant once a round, in changing order; a first round does not count.

    A contestant named in ``once`` is so slow that it runs in one round only.

    Returns:
        The result of each contestant in each round.
    """
    said: dict[str, list[float]] = {name: [] for name in contestants}
    often = [name for name in contestants if name not in once]
    for name in often:
        contestants[name]()
    for number in track(range(rounds), "Rounds", console=Console(stderr=True), transient=True):
        names = often if number else list(contestants)
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            said[name].append(contestants[name]())
    return said
