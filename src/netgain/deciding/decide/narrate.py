"""The narrator of a run to which nobody listens."""


class Silence:
    """Says nothing."""

    def phase(self, text: str, steps: int | None = None) -> None:
        return

    def step(self, text: str = "") -> None:
        return

    def found(self, text: str) -> None:
        return
