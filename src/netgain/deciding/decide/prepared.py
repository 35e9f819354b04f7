"""Everything that is known before the experiment, kept on disk beside its blocks, so that a run that ended can go on."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from netgain.deciding.decide.settings import Settings
from netgain.deciding.diagnose.hypotheses import Hypothesis
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.design import Design
from netgain.deciding.experiment.journal import FILE, Journal, finished_blocks, first_difference
from netgain.deciding.report.outcome import Asked, Outcome
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.facts import Facts
from netgain.errors import UsageError
from netgain.measuring.workload.item import Workload
from netgain.secrecy import without_secrets, words_without_secrets
from netgain.wording import count

PREPARED = "prepared.json"
FREE = ("output", "resume", "budget_s", "start_timeout_s", "price", "headers")  # may differ when a run goes on

P = TypeVar("P", bound=msgspec.Struct)


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """The measured baseline, the techniques to try, in this order, and the design of each one's experiment. `settings`: what was
    asked for, as a tree. `cannot_show`: what no run of this form can show, by technique."""

    settings: dict[str, Any]
    base: Outcome
    facts: Facts
    chosen: tuple[Hypothesis, ...]
    cannot_show: dict[str, tuple[str, ...]]
    design: Design


def settings_tree(settings: msgspec.Struct, free: Sequence[str] = FREE) -> dict[str, Any]:
    """What must be the same for blocks to belong together. `free`: fields that may differ. Of environment variables, which may
    hold keys, only digests: whether they are the same is all that the file need tell. In command lines secrets are hidden."""
    tree: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str)
    return {name: _sealed(value) for name, value in tree.items() if name not in free}


def _sealed(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            return list(words_without_secrets(value))
        return [_sealed(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: {variable: _digest(str(content)) for variable, content in item.items()}
        if name == "environment" and isinstance(item, dict)
        else _sealed(item)
        for name, item in value.items()
    }


def _digest(value: str) -> str:
    return f"SHA-256 {hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def check_unused(settings: Settings) -> None:
    """Raises UsageError when another experiment stands where this one is to be written: before anything is measured."""
    try:
        there = [path for path in journals(settings.output) if path.exists()]
    except OSError:  # whoever writes there first says why it cannot be used
        there = []
    if there and not settings.resume:
        raise UsageError(
            f"{there[0]} holds another experiment; go on with it (--resume), or name another folder (--output)"
        )


def journals(folder: Path) -> list[Path]:
    """Where the blocks of a run in this folder stand: of one candidate, or of each of several in a folder of its own."""
    return [folder / FILE, *(folder / name / FILE for name in CATALOGUE)]


def keep(folder: Path, prepared: msgspec.Struct) -> None:
    """Raises UsageError when the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{PREPARED}.part"
        part.write_bytes(msgspec.json.encode(prepared))
        part.replace(folder / PREPARED)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder} ({error.strerror or error}); name another folder for the output"
        ) from error


def kept(folder: Path, kind: type[P]) -> P:
    """Raises UsageError when the folder holds no run that came as far as its experiment."""
    try:
        return msgspec.json.decode((folder / PREPARED).read_bytes(), type=kind)
    except OSError as error:
        raise UsageError(
            f"there is nothing to resume in {folder}: no run came as far as its experiment there ({error.strerror or error})"
        ) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{folder / PREPARED} cannot be read ({error}); begin a new run") from error


def to_go_on_with(folder: Path) -> str:
    """What a run that was interrupted left, and how to go on with it; nothing where it left nothing."""
    blocks = sum(map(finished_blocks, journals(folder)))
    if not blocks or not (folder / PREPARED).is_file():
        return ""
    return f"; {count(blocks, 'finished block')} kept: the same command with --resume {folder} goes on with them"


def journal_of(
    folder: Path, resume: bool, settings: Mapping[str, Any], design: Design, arms: Mapping[str, Arm]
) -> Journal:
    """The blocks of this experiment: begun, or gone on with. `settings`: as a tree."""
    subject = {
        "settings": settings,
        "design": design,
        "arms": {name: {"command": arm.command} for name, arm in arms.items()},
    }
    path = folder / FILE
    return Journal.resume(path, subject) if resume else Journal.create(path, subject)


def prepared_before(settings: Settings) -> Prepared:
    """What an earlier run had prepared. Raises UsageError naming the setting in which this one differs."""
    before = kept(settings.output, Prepared)
    check_same(settings.output, before.settings, settings_tree(settings))
    return before


def check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UsageError naming the setting in which a run that goes on differs from what it was."""
    if (differs := first_difference(before, now)) is not None:
        name, then, is_now = differs
        raise UsageError(
            f"{folder} cannot be resumed: {name} was {then} and is {is_now} now. Ask for the same again, or begin a new run"
        )


def asked_for(settings: Settings, workload: Workload, prompts: int) -> Asked:
    """What the user asked for, after defaults; `prompts` are used."""
    return Asked(
        model=settings.model,
        workload=workload.name,
        workload_digest=workload.digest,
        prompts=prompts,
        prompts_available=len(workload.items),
        output_tokens_at_most=settings.form.output_tokens,
        concurrency=settings.concurrency,
        temperature=settings.temperature,
        seed=settings.seed,
        slo=settings.slo,
        minimum_effect=settings.minimum_effect,
        technique=settings.techniques[0] if len(settings.techniques) == 1 else None,
        form="quick" if settings.quick else "full",
        loads=settings.loads,
    )
