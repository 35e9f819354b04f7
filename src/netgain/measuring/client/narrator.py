"""How work that takes minutes tells what it is doing, so that a terminal, a test or nobody at all may listen."""

from typing import Protocol


class Narrator(Protocol):
    """Called from the event loop; must return quickly and may not raise."""

    def phase(self, text: str, steps: int | None = None) -> None:
        """A new part of the work begins; `steps` of progress are expected (None: unknown)."""
        ...

    def step(self, text: str = "") -> None:
        """One step of the current phase is done."""
        ...

    def found(self, text: str) -> None:
        """Something worth keeping on the screen."""
        ...
