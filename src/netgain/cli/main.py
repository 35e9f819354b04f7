"""The `netgain` command. Imports only the subcommand that was asked for, so that help is quick and the base install needs
no torch; every failure becomes one line on stderr and an exit code."""

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from netgain.cli.exit_codes import DONE, INTERRUPTED
from netgain.errors import NetgainError, Unavailable, UsageError
from netgain.wording import install_command


@dataclass(frozen=True)
class Command:
    """A subcommand: where its function or Typer app lives (`module:attribute`) and its line in `netgain --help`."""

    target: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "decide": Command(
        "netgain.cli.decide:decide",
        "Measure, try the technique that should help, say if it pays.",
    ),
    "guard": Command(
        "netgain.cli.guard:guard", "Watch a deployed service: does its verdict still hold, or is it time to go back?"
    ),
    "measure": Command(
        "netgain.cli.measure:measure",
        "Put load on any OpenAI-compatible server; find the rate it sustains; read other tools' results.",
    ),
    "quality": Command(
        "netgain.cli.quality:quality",
        "Measure what a server's answers are worth, and what a second one loses beside it.",
    ),
    "compare": Command(
        "netgain.cli.compare:compare",
        "Compare two servers, running or started for it, or two results, under the rule of equal resources.",
    ),
    "serve": Command("netgain.cli.serve:serve", "Serve a model over an OpenAI-compatible HTTP API."),
    "keys": Command("netgain.cli.keys:app", "Make, list or revoke API keys of a server."),
    "cache": Command(
        "netgain.cli.cache:app",
        "Look into KV tiers, verify or purge them; whether they pay here, in five steps; calibrate blending.",
    ),
    "record": Command(
        "netgain.cli.record:app", "Record the traffic of any OpenAI-compatible server, or import its logs."
    ),
    "calc": Command("netgain.cli.calc:app", "Work out what a technique should cost or bring, with your numbers."),
    "doctor": Command("netgain.cli.doctor:doctor", "Look for what keeps this machine or a server from serving well."),
    "model": Command("netgain.cli.model:app", "Fetch, inspect or convert a model."),
    "draft": Command("netgain.cli.draft:app", "Train, inspect and evaluate drafts for speculation."),
}

# What the extra `serve` adds to the base install, by import name.
SERVE_EXTRA = frozenset(
    {"fastapi", "gguf", "httptools", "llguidance", "safetensors", "starlette", "tokenizers", "torch", "uvicorn"}
)


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files and models may be no text in the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    # CPython kills itself at its end by a SIGINT whose exception passed through exec() of a text, as imports do, though it was
    # caught since: _Py_UnhandledKeyboardInterrupt, Modules/main.c. Another such exec() makes it forget.
    exec("")
    sys.exit(code)


def run(arguments: Sequence[str], commands: Mapping[str, Command] = COMMANDS) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted, or what the
    command itself returns (`exit_codes`).

    Raises what went wrong instead when the environment has NETGAIN_DEBUG=1.
    """
    name = arguments[0] if arguments else ""
    try:
        target = _load(commands[name]) if name in commands else None
        needs_more = not arguments or (len(arguments) == 1 and isinstance(target, typer.Typer))
        app = _assemble(commands, name, target)
        result = app(
            [*arguments, "--help"] if needs_more else list(arguments), prog_name="netgain", standalone_mode=False
        )
        if sys.stdout is not None:
            sys.stdout.flush()  # now, since a fault at exit would be a traceback
        return result if type(result) is int else DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # a reader that has seen enough, as in `netgain doctor | head`
        _drop_output()
        return 1
    except (Exception, typer.Abort) as error:
        if os.environ.get("NETGAIN_DEBUG") == "1":
            raise
        message, code = _explain(error, name if name in commands else None)
        if sys.stderr is not None:
            print(f"netgain: {message}", file=sys.stderr)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _drop_output()
        return code


def _assemble(commands: Mapping[str, Command], selected: str, target: Any) -> typer.Typer:
    """The app with `selected` as its imported `target`; the other commands are there by name and summary only."""
    app = typer.Typer(
        help="Decide whether a serving technique pays for your model, workload, machine and latency target.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(_options)
    for name, command in commands.items():
        if name != selected:
            app.command(name, help=command.summary)(_not_selected)
        elif isinstance(target, typer.Typer):
            app.add_typer(target, name=name, help=command.summary)
        else:
            app.command(name)(target)
    return app


def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        import importlib.metadata  # imports a parser of e-mail, which no other command should wait for

        print(f"netgain {importlib.metadata.version('netgain')}")
        raise typer.Exit


def _not_selected() -> None:
    """Stands for a command in the list of commands; `_assemble` replaces the one that runs."""
    raise UsageError("the command's name must come first: netgain COMMAND [OPTIONS]")


def _drop_output() -> None:
    """What could not be written is not tried again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _load(command: Command) -> Any:
    module, _, attribute = command.target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _explain(error: BaseException, command: str | None) -> tuple[str, int]:
    """What to print for `error` of `command` (None: no known one was named), and the exit code."""
    invocation = f"netgain {command}" if command else "netgain"
    if isinstance(error, ModuleNotFoundError) and (missing := (error.name or "").partition(".")[0]) in SERVE_EXTRA:
        error = Unavailable(f"'{invocation}' needs {missing}, which the base install lacks: {install_command('serve')}")
    if isinstance(error, NetgainError):
        return str(error), error.exit_code
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else invocation  # also names a command below a command
        return f"{error.format_message().rstrip('.')} (see {path} --help)", error.exit_code
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space is left on the device{f' for {error.filename}' if error.filename else ''}; make room", 1
    if isinstance(error, typer.Abort):
        return "stopped", INTERRUPTED
    return f"internal error{_where(error)}: {type(error).__name__}: {error} (NETGAIN_DEBUG=1 shows the traceback)", 1


def _where(error: BaseException) -> str:
    """The last line of netgain's own code that `error` passed through."""
    package = Path(__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(package):
            return f" at {Path(frame.filename).relative_to(package.parent)}:{frame.lineno}"
    return ""


if __name__ == "__main__":
    main()
