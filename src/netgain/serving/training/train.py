"""From a target and prompts to a draft: replies, features, training, each kept so that the next run goes on from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.drafts.manifest import MANIFEST, Kind, Manifest
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model, weight_source
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from netgain.serving.training.corpus import BATCH_TOKENS, Corpus, most_frequent
from netgain.serving.training.features import FeatureFile
from netgain.serving.training.fit import Fit, Limits, Trained
from netgain.serving.training.prompts import Prompt, digest
from netgain.serving.training.replies import AT_ONCE, RUNNING, Reply, ReplyStore, data_digest
from netgain.serving.training.saving import WORK, prepare_folder, save_draft
from netgain.serving.training.students import BUILD, chosen_layers, default_taps, target_of

RUN = "run.json"
KV_TOKENS = 16_384  # for the replies that are generated together
FOR_REPLIES = 0.35  # of the minutes, at most


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What to train, and how. `steps` or `minutes` ends it; `replies` is how many to learn from at most (None: as many as a
    third of the minutes allows, or one to each prompt)."""

    kind: Kind
    minutes: float | None = 20.0
    steps: int | None = None
    vocab: int = 4096
    positions: int = 2
    layers: str | None = None
    seed: int = 0
    reply_tokens: int = 160
    replies: int | None = None
    threads: int | None = None
    checkpoint_steps: int | None = None


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a resumed training must have in common with the one before. `replies` is their number once they are there,
    `training_s` what was left for training of the minutes."""

    kind: Kind
    target: str
    tokenizer: str
    prompts: str
    vocab: int
    positions: int
    layers: tuple[int, ...]
    seed: int
    reply_tokens: int
    replies: int | None = None
    training_s: float | None = None


Tell = Callable[[str, float, Trained | None], None]
"""Hears the stage ("replies", "features", "training"), the share of it that is done, and how far the training is."""


def train(
    source: str, folder: Path, prompts: Sequence[Prompt], recipe: Recipe, *, cache: Path, resume: bool, tell: Tell
) -> Manifest | None:
    """Writes a draft for `source` to `folder`; returns its manifest, or None if it was stopped before it was done, when what
    there is can be used, and resumed. Replies are kept in `cache`.

    Raises UsageError for a folder that holds something else, and for a `resume` that does not fit what lies there.
    """
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    checkpoint = open_checkpoint(source)
    layers = chosen_layers(recipe.layers, recipe.kind, checkpoint.config.layers)
    work = folder / WORK
    _check_folder(folder, work, resume)
    prepare_folder(folder, checkpoint, layers)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{work} cannot be made: {error.strerror or error}") from error
    taps = default_taps(recipe.kind, checkpoint.config.layers)
    with _torch_threads():
        run, replies, threads = _answered(source, work, cache, prompts, recipe, layers, started_s, tell)
        kernels = load_kernels("auto", threads)
        features = FeatureFile(work / "features.bin", replies, len(taps) * checkpoint.config.hidden)
        features.fill(load_model(source, "auto", kernels, taps=taps), lambda share: tell("features", share, None))
        torch.set_num_threads(threads)
        always = sorted({*checkpoint.eos, *checkpoint.tokenizer.control_ids})
        ids, coverage = most_frequent(replies, always, recipe.vocab, checkpoint.config.vocab)
        corpus = Corpus(replies, features)
        scale = corpus.scale(checkpoint.config.hidden)
        target = target_of(recipe.kind, weight_source(checkpoint), checkpoint.config, ids, scale)
        torch.manual_seed(recipe.seed)
        student = BUILD[recipe.kind](target, taps, recipe.positions, layers)
        if recipe.steps is None and run.training_s is None:
            left_s = (recipe.minutes or 0.0) * 60 - (time.monotonic() - started_s)
            run = _write(work / RUN, msgspec.structs.replace(run, training_s=max(1.0, left_s)))
        data = data_digest(replies)

        facts = {
            "prompts": run.prompts,
            "replies": len(replies),
            "reply_tokens": corpus.taught_tokens,
            "vocab": len(ids),
            "coverage": round(coverage, 4),
            "layers": list(layers),
            "seed": recipe.seed,
            "rate": student.rate,
            "batch_tokens": BATCH_TOKENS,
            "threads": threads,
            "preparing_cpu_s": round(time.process_time() - started_cpu_s, 1),
        }

        def manifest(trained: Trained) -> Manifest:
            return Manifest(
                kind=recipe.kind,
                target=run.target,
                target_name=checkpoint.name,
                tokenizer=run.tokenizer,
                data=data,
                taps=taps,
                positions=recipe.positions,
                recipe=facts | _progress(trained, corpus),
                acceptance=trained.acceptance,
                held_out=trained.held_out,
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )

        fit = Fit(
            student,
            target,
            corpus,
            Limits(recipe.steps, run.training_s, checkpoint_steps=recipe.checkpoint_steps),
            work / "state.pt",
            recipe.seed,
            lambda trained: save_draft(folder, student, manifest(trained)),
        )
        if resume:
            fit.resume()
        done = fit.run(lambda share, trained: tell("training", share, trained))
    if not done:
        return None
    made = manifest(fit.trained)
    for file in work.iterdir():
        file.unlink()
    work.rmdir()
    return made


def _progress(trained: Trained, corpus: Corpus) -> dict[str, object]:
    return {
        "steps": trained.step,
        "epochs": round(trained.seen_tokens / max(1, corpus.taught_tokens), 2),
        "training_s": round(trained.spent_s, 1),
        "training_cpu_s": round(trained.cpu_s, 1),
        "losses": [round(value, 4) for value in trained.losses],
    }


def _answered(
    source: str,
    work: Path,
    cache: Path,
    prompts: Sequence[Prompt],
    recipe: Recipe,
    layers: tuple[int, ...],
    started_s: float,
    tell: Tell,
) -> tuple[_Run, list[Reply], int]:
    """The replies to learn from (of a resumed run the same ones), what is known of them, and the threads that are used. The
    engine is gone again when this returns."""
    config = EngineConfig.model_validate(
        {
            "model": {"source": source, "threads": recipe.threads},
            "cache": {"kv_tokens": KV_TOKENS},
            "scheduler": {"max_running": RUNNING, "max_waiting": AT_ONCE},
        }
    )
    with LLM(config) as llm:
        loaded = llm.built.loaded
        run = _Run(
            kind=recipe.kind,
            target=loaded.weights_digest,
            tokenizer=loaded.tokenizer_digest,
            prompts=digest(prompts),
            vocab=recipe.vocab,
            positions=recipe.positions,
            layers=layers,
            seed=recipe.seed,
            reply_tokens=recipe.reply_tokens,
        )
        before = _before(work / RUN, run)
        replies = _replies(llm, cache, prompts, recipe, before.replies if before else recipe.replies, started_s, tell)
        run = msgspec.structs.replace(run, replies=len(replies), training_s=before.training_s if before else None)
        return _write(work / RUN, run), replies, int(llm.built.info["threads"])


def _replies(
    llm: LLM, cache: Path, prompts: Sequence[Prompt], recipe: Recipe, wanted: int | None, started_s: float, tell: Tell
) -> list[Reply]:
    loaded = llm.built.loaded
    store = ReplyStore(
        cache / "replies",
        f"{loaded.weights_digest}:{loaded.tokenizer_digest}:{loaded.numerics}",
        prompts,
        seed=recipe.seed,
        reply_tokens=recipe.reply_tokens,
    )
    until_s = None
    if wanted is None:
        wanted = store.most
        if recipe.steps is None and recipe.minutes is not None:
            until_s = started_s + recipe.minutes * 60 * FOR_REPLIES
        else:
            wanted = len(prompts)

    def enough(replies: list[Reply]) -> bool:
        share = len(replies) / wanted
        if until_s is not None:
            share = max(share, 1 - (until_s - time.monotonic()) / (until_s - started_s))
        tell("replies", min(1.0, share), None)
        return until_s is not None and time.monotonic() >= until_s and bool(replies)

    return store.extend(llm, wanted, enough)[:wanted]


def _write(path: Path, run: _Run) -> _Run:
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(run))
    part.replace(path)
    return run


def _before(path: Path, run: _Run) -> _Run | None:
    """The run that is resumed. Raises UsageError with what differs."""
    if not path.exists():
        return None
    try:
        before = msgspec.json.decode(path.read_bytes(), type=_Run)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is damaged ({error}); remove its folder to train anew") from error
    for name in run.__struct_fields__:
        was, now = getattr(before, name), getattr(run, name)
        if name not in ("replies", "training_s") and was != now:
            raise UsageError(
                f"what lies in {path.parent} was begun with {name} {was}, now it is {now}: resume with the same, or remove "
                "the folder"
            )
    return before


def _check_folder(folder: Path, work: Path, resume: bool) -> None:
    try:
        if resume:
            if not work.is_dir():
                done = " (a finished draft lies there)" if (folder / MANIFEST).is_file() else ""
                raise UsageError(f"there is no training to resume in {folder}{done}; leave --resume out")
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            begun = "a training was begun there: --resume goes on with it" if work.is_dir() else "remove it"
            raise UsageError(f"{folder} exists already; {begun}, or give another folder")
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror or error}") from error


@contextmanager
def _torch_threads() -> Iterator[None]:
    """Gives torch the number of threads back that it had."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
