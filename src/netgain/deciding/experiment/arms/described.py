"""An arm as a user describes it, in a file or by the command line that starts it, and the arm made from that."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.confounders import ArmSetup
from netgain.deciding.experiment.arms.devices import devices_written
from netgain.deciding.experiment.arms.effective import effective_configuration
from netgain.deciding.experiment.arms.hooked import HookedArm
from netgain.deciding.experiment.arms.hooks import Hooks, check_fields, hooks_from, read_tree
from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.deciding.experiment.arms.llama_cpp import launched_llama_cpp
from netgain.deciding.experiment.arms.netgain import launched_netgain
from netgain.deciding.experiment.arms.port import check_port, names_address, pinned_port
from netgain.deciding.experiment.arms.sglang import launched_sglang
from netgain.deciding.experiment.arms.starting import Starting, given_words
from netgain.deciding.experiment.arms.vllm import launched_vllm
from netgain.errors import UsageError
from netgain.measuring.observe.names import Engine

SUFFIXES = (".yaml", ".yml", ".toml")
_URL = re.compile(r"[a-zA-Z][\w+.-]*://")
_MODEL_OPTIONS = ("-m", "--model", "--model-path")
_PORT = re.compile(r"--port[=\s]+\d+")


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm is started: by the engine's own server, or by `hooks`. `engine` None: of hooks that do not say what they
    start. `port`: of the loopback interface, the same at every start (None: a free one). Raises UsageError where that cannot be
    meant."""

    engine: Engine | None = "netgain"
    model: str = "default"
    starting: Starting = Starting()
    hooks: Hooks | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        if self.hooks is not None:
            return
        if self.port is not None:
            check_port(self.port, "an arm")
        if (address := names_address(self.starting.flags)) is not None:
            raise UsageError(
                f"the flags name {address}; leave it out: a started server gets a free port of the loopback interface, and an "
                "arm of netgain compare may pin one (port: N in its file, --port N in its command line)"
            )
        told = self.starting.command or ""
        if "{port}" not in told and (literal := _PORT.search(told)) is not None:
            raise UsageError(
                f"the command names {literal[0]} and has no place for {{port}}; write {{port}} where it belongs"
            )
        if self.engine not in ("netgain", None) and self.model == "default":
            raise UsageError(f"{self.engine} has no default model; name one that it can load")
        if self.engine == "netgain" and self.starting.command is not None:
            raise UsageError(
                "netgain starts as a Python program: give the interpreter of another environment (python), or start and stop as "
                "commands"
            )

    @property
    def devices(self) -> int | None:
        """How many the arm was written to occupy; None where nothing tells."""
        if self.hooks is not None and self.hooks.devices is not None:
            return self.hooks.devices
        return devices_written(self.engine, self.starting)


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a file without hooks. `settings`: netgain's, by dotted name."""

    engine: Engine = "netgain"
    model: str = "default"
    python: str | None = None
    command: str | None = None
    flags: str | tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    environment: dict[str, str | int | float] = {}
    devices: int | None = None
    port: int | None = None


def describes_an_arm(source: str) -> bool:
    """Whether a side is described, by a YAML or TOML file or by a command line, rather than a URL or a result's path."""
    if _URL.match(source):
        return False
    return _is_file(source) or (" " in source.strip() and not Path(source).exists())


def describe(source: str) -> Described:
    """Raises UsageError with the place in the file or the word of the command line."""
    if _is_file(source):
        return described_from(read_tree(Path(source), "arm"), source)
    return described_by_command(source)


def described_from(tree: Any, told_in: str) -> Described:
    """From names and values: of hooks where `start` or `stop` is among them. Raises UsageError naming the field."""
    if not isinstance(tree, dict):
        raise UsageError(f"{told_in} describes no arm; give at least engine and model, or start and stop")
    if "start" in tree or "stop" in tree:
        flags = _words(tree.get("flags", ()), told_in)
        hooks = hooks_from({name: value for name, value in tree.items() if name != "flags"}, told_in, ("flags",))
        return Described(engine=hooks.engine, hooks=hooks, starting=Starting(flags=flags))
    names = {field.name for struct in (_File, Hooks) for field in msgspec.structs.fields(struct)}
    check_fields(tree, sorted(names), told_in)
    try:
        given = msgspec.convert(tree, _File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{told_in} cannot be used: {error}") from error
    if given.settings and given.engine != "netgain":
        raise UsageError(f"{told_in} has settings, which are netgain's; give {given.engine} its own flags")
    settings = [part for name, value in given.settings.items() for part in ("--set", f"{name}={_text(value)}")]
    return Described(
        engine=given.engine,
        model=given.model,
        starting=Starting(
            python=given.python,
            command=given.command,
            flags=(*_words(given.flags, told_in), *settings),
            environment={name: str(value) for name, value in given.environment.items()},
            devices=given.devices,
        ),
        port=given.port,
    )


def described_by_command(text: str) -> Described:
    """From `netgain serve MODEL ...`, `vllm serve MODEL ...`, `llama-server -m MODEL ...` or `python -m sglang.launch_server
    --model-path MODEL ...`, with variables (NAME=VALUE) before it, `--port N` where it is to be pinned, and any of them by its
    path. Raises UsageError."""
    words = list(_words(text, "the arm"))
    environment: dict[str, str] = {}
    while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    port, words = pinned_port(words, f"the arm {text!r}")
    program = Path(words[0]).name if words else ""
    if program == "netgain" and words[1:2] == ["serve"]:
        if words[0] != "netgain":
            raise UsageError(
                f"the arm {text!r} names netgain by a path; describe it in a file, with its interpreter (python)"
            )
        model, flags = _first(words[2:])
        starting = Starting(flags=tuple(flags), environment=environment)
        return Described(model=model or "default", starting=starting, port=port)
    engine: Engine
    if program == "vllm" and words[1:2] == ["serve"]:
        engine, head, rest = "vllm", words[:2], words[2:]
        model, flags = _first(rest)
    elif program == "llama-server":
        engine, head, rest = "llama.cpp", words[:1], words[1:]
        model, flags = _named(rest)
    elif words[1:3] == ["-m", "sglang.launch_server"]:
        engine, head, rest = "sglang", words[:3], words[3:]
        model, flags = _named(rest)
    else:
        raise UsageError(
            f"the arm {text!r} begins with no server that is known (netgain serve, vllm serve, llama-server, python -m "
            "sglang.launch_server); describe it in a YAML or TOML file"
        )
    if model is None:
        raise UsageError(f"the arm {text!r} names no model")
    command = None if head in (["vllm", "serve"], ["llama-server"]) else shlex.join(head)
    starting = Starting(command=command, flags=tuple(flags), environment=environment)
    return Described(engine=engine, model=model, starting=starting, port=port)


def launched(
    described: Described,
    name: str,
    folder: Path,
    flags: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Arm:
    """The arm, not yet started; its log goes to `folder`. `flags` come on top of its own; `headers` go with every request."""
    if described.hooks is not None:
        return HookedArm(name, described.hooks, (*described.starting.flags, *flags), headers)
    arm = _server(described, name, folder / f"{name}.log", flags)
    arm.headers = headers or {}
    return arm


def _server(described: Described, name: str, log: Path, flags: Sequence[str]) -> LaunchedServer:
    starting = described.starting
    match described.engine:
        case "vllm":
            return launched_vllm(name, described.model, flags, log, starting, described.port)
        case "sglang":
            return launched_sglang(name, described.model, flags, log, starting, described.port)
        case "llama.cpp":
            return launched_llama_cpp(name, described.model, flags, log, starting, described.port)
        case _:
            return launched_netgain(name, (described.model, *starting.flags, *flags), log, starting, described.port)


async def setup_of(arm: Arm, described: Described, flags: Sequence[str] = ()) -> ArmSetup:
    """What is known of a running arm, to look for confounders."""
    log = arm.log if isinstance(arm, LaunchedServer) else ""
    engine = described.engine
    return ArmSetup(
        name=arm.name,
        flags=given_words(described.starting, flags),
        configuration=None if engine is None else await effective_configuration(arm.url, engine, log, arm.headers),
        log=log,
        environment={**os.environ, **described.starting.environment},
    )


def _is_file(source: str) -> bool:
    """By its name; a command line may end with one."""
    path = Path(source)
    return path.suffix.lower() in SUFFIXES and (" " not in source.strip() or path.exists())


def _first(words: list[str]) -> tuple[str | None, list[str]]:
    """The model that stands first, and the rest."""
    return (words[0], words[1:]) if words and not words[0].startswith("-") else (None, words)


def _named(words: list[str]) -> tuple[str | None, list[str]]:
    """The model that an option names, and the rest."""
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in _MODEL_OPTIONS:
            taken = 1 if equals else 2
            model = value if equals else next(iter(words[place + 1 : place + 2]), None)
            return model, [*words[:place], *words[place + taken :]]
    return None, words


def _words(flags: str | Sequence[str], told_in: str) -> tuple[str, ...]:
    if not isinstance(flags, str):
        return tuple(map(str, flags))
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise UsageError(f"{told_in}: {flags!r} cannot be read as a shell would ({error})") from error


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
