"""Progress in the terminal: one line per finished phase with its time, a bar for the current one."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from netgain.errors import UsageError


class TerminalProgress:
    """A narrator for people. Where the console is no terminal it prints plain lines and no bar."""

    def __init__(self, console: Console, stopped: Callable[[], str], kept: Callable[[], str] = lambda: "") -> None:
        """`stopped`: what to say after Ctrl-C or SIGTERM, asked then; `kept`: what a failure left to go on with, if anything."""
        self._stopped = stopped
        self._kept = kept
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[last]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._text = ""
        self._began_s = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._end_phase()
        self._progress.stop()
        if kind is KeyboardInterrupt:
            self._console.print(f"[yellow]stopped[/]; {escape(self._stopped())}", highlight=False)
        elif error is not None and not isinstance(error, UsageError) and (kept := self._kept()):
            self._console.print(f"[yellow]failed[/]{escape(kept)}", highlight=False, soft_wrap=True)

    def phase(self, text: str, steps: int | None = None) -> None:
        self._end_phase()
        self._text, self._began_s = text, time.monotonic()
        self._task = self._progress.add_task(escape(text), total=steps, last="")

    def step(self, text: str = "") -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=1, last=escape(text))

    def found(self, text: str) -> None:
        self._end_phase()
        self._console.print(f"  [bold]{escape(text)}[/]", highlight=False)

    def _end_phase(self) -> None:
        if self._task is None:
            return
        self._progress.remove_task(self._task)
        self._task = None
        took_s = time.monotonic() - self._began_s
        self._console.print(f"[green]✓[/] {escape(self._text)} [dim]{took_s:.0f} s[/]", highlight=False)
