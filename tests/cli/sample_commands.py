"""Commands that end in every way a command can end; test_main.py runs them in a process of their own."""

import time

import typer

from netgain.errors import UsageError

app = typer.Typer()


@app.command()
def inspect(path: str) -> None:
    """Print what it was given."""
    print(f"inspected {path}")


@app.command()
def other() -> None:
    """Make `app` a group."""


def rejected(rate: float = 1.0) -> None:
    """Refuse the rate."""
    raise UsageError(f"rate {rate} is not positive; give requests per second, such as --rate 2")


def broken() -> None:
    """Fail as a fault of the program does."""
    raise ZeroDivisionError("division by zero")


def counted() -> int:
    """End with an exit code of its own."""
    return 3


def waits() -> None:
    """Say that it runs, then sleep."""
    print("waiting", flush=True)
    time.sleep(60)


def needs_torch() -> None:
    """Import what the base install lacks."""
    raise ModuleNotFoundError("No module named 'torch'", name="torch")
