"""Measures codecs on a model's own KV: bytes, speed, and what is lost by continuing from a prefix that was coded and decoded."""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.kv import DTYPES
from netgain.serving.model.load import LoadedModel
from netgain.serving.runtime.codec_gate.retrieval import Passage, passages
from netgain.serving.runtime.codec_gate.verdict import Interval, Loss, LostInterval, Row, judge
from netgain.serving.tiers.codecs import tables
from netgain.serving.tiers.codecs.cachegen import WIDTHS
from netgain.serving.tiers.codecs.codec import Codec, Form
from netgain.serving.tiers.codecs.coded import encoded
from netgain.serving.tiers.object import Part, Shape, StoredObject, pack

CHUNK = 128
MOST_PREFIX = 384  # tokens of a text that are coded
MOST_CONTINUED = 128
TRAINED_ON = 1024  # tokens from which tables are made
_RESAMPLES = 2000
_TAIL = 0.99
_SPELLS = ("bfloat16", "float32")

Tell = Callable[[str, float], None]


class Ground:
    """One model with KV of one type, in blocks of one size: what every measurement here runs on."""

    def __init__(self, loaded: LoadedModel, kv_dtype: str, block_tokens: int) -> None:
        self.loaded, self.block_tokens = loaded, block_tokens
        self._dtype = DTYPES[kv_dtype]
        config = loaded.config
        name = str(self._dtype).removeprefix("torch.")
        item = self._dtype.itemsize
        if name not in _SPELLS:
            raise UsageError(f"KV in {name} is not coded by lossy codecs: measure them on bf16 or fp32 KV")
        self.shape = Shape(
            config.kv_heads, config.head_dim, name, 2 * config.kv_heads * config.head_dim * item, block_tokens
        )

    @property
    def form(self) -> Form:
        return Form(
            first_layer=0,
            layers=self.loaded.config.layers,
            kv_heads=self.shape.kv_heads,
            head_dim=self.shape.head_dim,
            tokens=self.block_tokens,
            dtype=self.shape.dtype,
            token_bytes=self.shape.token_bytes,
        )

    def room(self, blocks: int) -> PagedKV:
        return PagedKV(self.loaded.config, blocks, self.block_tokens, self._dtype)

    def prefill(self, tokens: Sequence[int], kv: PagedKV) -> None:
        """Whole blocks of tokens into the first blocks of `kv`."""
        table = torch.arange(len(tokens) // self.block_tokens, dtype=torch.int32)[None]
        for start in range(0, len(tokens), CHUNK):
            part = torch.tensor(tokens[start : start + CHUNK])
            positions = torch.arange(start, start + len(part))
            self._forward(part, positions, torch.zeros(len(part), dtype=torch.int64), table, kv, torch.tensor([0]))

    def continued(self, prefix: int, suffixes: Sequence[Sequence[int]], kv: PagedKV, wanted: Tensor) -> Tensor:
        """Logits [wanted, vocabulary] of the suffixes, laid end to end, each behind the first `prefix` tokens of `kv`; what
        they write goes into blocks behind the prefix."""
        shared = prefix // self.block_tokens
        own = [-(-len(suffix) // self.block_tokens) for suffix in suffixes]
        table = torch.zeros(len(suffixes), shared + max(own), dtype=torch.int32)
        table[:, :shared] = torch.arange(shared, dtype=torch.int32)
        at = shared
        for row, blocks in enumerate(own):
            table[row, shared : shared + blocks] = torch.arange(at, at + blocks, dtype=torch.int32)
            at += blocks
        tokens = torch.tensor([token for suffix in suffixes for token in suffix])
        positions = torch.cat([torch.arange(prefix, prefix + len(suffix)) for suffix in suffixes])
        segments = torch.repeat_interleave(torch.arange(len(suffixes)), torch.tensor([len(s) for s in suffixes]))
        return self._forward(tokens, positions, segments, table, kv, wanted)

    def blocks(self, kv: PagedKV, count: int) -> list[bytes]:
        """The canonical bytes of the first blocks."""
        return [b"".join(plane.tobytes() for plane in self._planes(kv, block)) for block in range(count)]

    def write(self, kv: PagedKV, block: int, raw: bytes | memoryview | bytearray) -> None:
        at = 0
        for plane in self._planes(kv, block):
            plane[...] = np.frombuffer(raw, np.uint8, plane.size, at)
            at += plane.size

    def stored(self, raw: bytes) -> StoredObject:
        part = Part(key=bytes(32), first_layer=0, layers=self.loaded.config.layers)
        return StoredObject(part, bytes(32), self.shape, self.block_tokens, "raw", raw)

    def _planes(self, kv: PagedKV, block: int) -> Iterator[np.ndarray]:
        for layer in range(self.loaded.config.layers):
            for tensor in (kv.keys(layer), kv.values(layer)):
                yield tensor[block].reshape(-1).view(torch.uint8).numpy()

    def _forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor, table: Tensor, kv: PagedKV, wanted: Tensor
    ) -> Tensor:
        plan = self.loaded.model.kernels.plan(positions, segments, table, self.block_tokens)
        return self.loaded.model.forward(tokens, positions, plan, kv, wanted)


def make_tables(ground: Ground, text: str) -> dict[str, bytes]:
    """The tables of every codec that has some, from KV of `text`. Raises UsageError where that is not a block of tokens."""
    tokens = ground.loaded.tokenizer.encode(text, start=True)[: min(TRAINED_ON, ground.loaded.config.context)]
    count = len(tokens) // ground.block_tokens
    if not count or ground.block_tokens < 2:
        raise UsageError(f"tables need a block of at least 2 tokens; the text has {len(tokens)}")
    kv = ground.room(count)
    ground.prefill(tokens[: count * ground.block_tokens], kv)
    samples = [(raw, ground.form) for raw in ground.blocks(kv, count)]
    return {name: tables.pack(tables.make(samples, width)) for name, width in WIDTHS.items()}


def measure(
    ground: Ground, codecs: Sequence[Codec], texts: Sequence[str], tell: Tell, interval: LostInterval, count: int
) -> Iterator[Row]:
    """A row for each codec, with `count` passages of questions. Raises UsageError where no text is long enough."""
    encode = ground.loaded.tokenizer.encode
    read = [encode(text, start=True) for text in texts]
    texts_left = [tokens for tokens in read if len(tokens) >= 4 * ground.block_tokens]
    if not texts_left:
        raise UsageError(f"no text has {4 * ground.block_tokens} tokens, of which half is coded and half continues")
    asked = passages(lambda text: encode(text, start=True), count)
    tallies = [_Tally(codec) for codec in codecs]
    steps = len(texts_left) + len(asked)
    for number, tokens in enumerate(texts_left):
        _on_text(ground, tokens, tallies)
        tell("perplexity and KL", (number + 1) / steps)
    for number, passage in enumerate(asked):
        _on_passage(ground, passage, tallies)
        tell("answers in the prompt", (len(texts_left) + number + 1) / steps)
    for tally in tallies:
        yield tally.row(interval)


class _Tally:
    """What is counted of one codec, text by text."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.raw_bytes = self.coded_bytes = 0
        self.encode_s: list[float] = []
        self.decode_s: list[float] = []
        self.exact = True
        self.divergences: list[np.ndarray] = []
        self.losses: list[np.ndarray] = []  # how much less likely what follows is
        self.same: list[np.ndarray] = []
        self.own_loss: list[np.ndarray] = []
        self.found = self.found_raw = self.asked = self.won = 0

    def through(self, ground: Ground, raw: bytes) -> bytes | memoryview | bytearray:
        """The block as it comes back; counts bytes and time."""
        form = ground.form
        started_s = time.perf_counter()
        payload = self.codec.encode(raw, form)
        coded_s = time.perf_counter()
        back = raw if payload is None else self.codec.decode(payload, form)
        self.encode_s.append(coded_s - started_s)
        self.decode_s.append(time.perf_counter() - coded_s)
        stored = ground.stored(raw)
        self.raw_bytes += len(pack(stored))
        self.coded_bytes += len(pack(encoded(stored, self.codec)))
        self.exact = self.exact and back == raw
        return back

    def row(self, interval: LostInterval) -> Row:
        block_bytes = self.raw_bytes / max(1, len(self.encode_s))
        state, why = ("token-identical", "every bit came back") if self.exact else judge(self.loss(interval), interval)
        return Row(
            name=self.codec.name,
            id=self.codec.id,
            lossy=self.codec.lossy,
            ratio=self.raw_bytes / (self.coded_bytes + self.codec.table_bytes),
            table_bytes=self.codec.table_bytes,
            encode_bytes_per_s=block_bytes / float(np.median(self.encode_s)),
            decode_bytes_per_s=block_bytes / float(np.median(self.decode_s)),
            loss=None if self.exact else self.loss(interval),
            state=state,
            why=why,
        )

    def loss(self, interval: LostInterval) -> Loss:
        ratio = _interval(self.losses)
        lost = self.found_raw - self.found + self.won
        low, high = interval(self.asked, lost, self.won)
        return Loss(
            perplexity_ratio=Interval(*(math.exp(x) for x in (ratio.value, ratio.low, ratio.high))),
            kl=_interval(self.divergences),
            kl_p99=_tail(self.divergences),
            same_first=_interval(self.same),
            positions=sum(map(len, self.divergences)),
            texts=len(self.losses),
            found=self.found,
            found_raw=self.found_raw,
            asked=self.asked,
            won=self.won,
            fewer=Interval((lost - self.won) / max(1, self.asked), -high, -low),
        )


def _on_text(ground: Ground, tokens: Sequence[int], tallies: Sequence[_Tally]) -> None:
    """Half of it is the prefix, the rest is continued."""
    size = ground.block_tokens
    prefix = min(len(tokens) // 2, MOST_PREFIX) // size * size
    suffix = tokens[prefix : prefix + MOST_CONTINUED + 1]
    blocks = prefix // size
    kv = ground.room(blocks + -(-len(suffix) // size))
    ground.prefill(tokens[:prefix], kv)
    own, targets = ground.blocks(kv, blocks), torch.tensor(suffix[1:])
    rows = torch.arange(len(suffix) - 1)
    expected = torch.log_softmax(ground.continued(prefix, [suffix[:-1]], kv, rows).double(), 1)
    for tally in tallies:
        _replace(ground, kv, own, tally)
        if tally.exact:
            continue
        found = torch.log_softmax(ground.continued(prefix, [suffix[:-1]], kv, rows).double(), 1)
        tally.divergences.append((expected.exp() * (expected - found)).sum(1).clamp_min(0).numpy())
        tally.losses.append((expected - found).gather(1, targets[:, None])[:, 0].numpy())
        tally.same.append((expected.argmax(1) == found.argmax(1)).double().numpy())


def _on_passage(ground: Ground, passage: Passage, tallies: Sequence[_Tally]) -> None:
    size = ground.block_tokens
    prefix = len(passage.tokens) // size * size
    rest = passage.tokens[prefix:]
    suffixes = [[*rest, *question.tokens] for question in passage.questions]
    inputs = [suffix[:-1] for suffix in suffixes]
    starts = np.cumsum([0, *map(len, inputs)])
    rows, targets = [], []
    for start, suffix, question in zip(starts, suffixes, passage.questions, strict=False):
        end = int(start) + len(suffix) - 1
        rows += range(end - question.answer, end)
        targets += suffix[-question.answer :]
    of = np.repeat(np.arange(len(suffixes)), [question.answer for question in passage.questions])
    kv = ground.room(prefix // size + sum(-(-len(one) // size) for one in inputs))
    ground.prefill(passage.tokens[:prefix], kv)
    own = ground.blocks(kv, prefix // size)

    def found() -> list[bool]:
        right = (ground.continued(prefix, inputs, kv, torch.tensor(rows)).argmax(1) == torch.tensor(targets)).numpy()
        return [bool(right[of == question].all()) for question in range(len(suffixes))]

    by_own_kv = found()
    for tally in tallies:
        tally.asked += len(suffixes)
        tally.found_raw += sum(by_own_kv)
        _replace(ground, kv, own, tally)
        decoded = by_own_kv if tally.exact else found()
        tally.found += sum(decoded)
        tally.won += sum(now and not before for now, before in zip(decoded, by_own_kv, strict=True))


def _replace(ground: Ground, kv: PagedKV, own: Sequence[bytes], tally: _Tally) -> None:
    for block, raw in enumerate(own):
        ground.write(kv, block, tally.through(ground, raw))


def _interval(by_text: Sequence[np.ndarray]) -> Interval:
    """The mean over all positions, and its percentile interval when texts are drawn again."""
    sums, counts = np.array([part.sum() for part in by_text]), np.array([len(part) for part in by_text])
    drawn = np.random.default_rng(0).integers(0, len(sums), (_RESAMPLES, len(sums)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def _tail(by_text: Sequence[np.ndarray]) -> Interval:
    """The p99 over all positions, with its percentile interval when texts are drawn again: each position counts as often as its
    text was drawn."""
    values = np.concatenate(by_text)
    order = np.argsort(values)
    text = np.repeat(np.arange(len(by_text)), [len(part) for part in by_text])[order]
    draw = np.random.default_rng(0)
    drawn = np.empty(_RESAMPLES)
    for number in range(_RESAMPLES):
        times = np.bincount(draw.integers(0, len(by_text), len(by_text)), minlength=len(by_text))
        below = np.cumsum(times[text])
        drawn[number] = values[order[np.searchsorted(below, _TAIL * below[-1])]]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(float(np.quantile(values, _TAIL, method="inverted_cdf")), float(low), float(high))
