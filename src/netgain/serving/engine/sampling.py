"""How a token follows from logits: the ordinary sampler, and the law it samples from.

The whole order is: logit bias, repetition, then frequency and presence penalties, what grammar and min_tokens forbid (all in
`edits`, before this); then here temperature, top-k, top-p, min-p. Bias before penalties is vLLM's order, top-k before top-p
before min-p that of Hugging Face transformers. Every cut breaks ties in favour of the lowest id. The token is
argmax(logit / temperature + noise) over what is left, with noise that belongs to (seed, choice, position, token id): cutting
candidates never shifts the noise of the others.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netgain.errors import NetgainError, RequestRejected
from netgain.serving.engine import noise
from netgain.serving.engine.request import SamplingParams

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

# Below this the most likely token wins by construction unless logits agree to five digits, so it is chosen outright:
# what a client means by a temperature that small is greedy.
GREEDY_TEMPERATURE = 1e-5

# How many of the most likely candidates are sorted first when top-p looks for its cut; grows only if they do not suffice.
_TOP_P_FIRST = 64
_TOP_P_GROWTH = 8

MAX_LOGPROBS = 20
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MIN_REPETITION, MAX_REPETITION = 0.01, 100.0


class UnusableLogits(NetgainError):
    """The model produced NaN, +infinity, or nothing but -infinity where a token had to be chosen."""


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature <= GREEDY_TEMPERATURE


def choose(logits: np.ndarray, params: SamplingParams, choice: int, position: int) -> int:
    """The token that the sampler puts at `position`, from `logits` [vocab].

    -inf forbids a token. Raises UnusableLogits rather than answer from NaN.
    """
    if is_greedy(params):
        return _most_likely(logits, position)
    kept = _candidates(logits, params, position)
    lane = noise.Lane.TOKEN
    return noise.draw(params.seed, choice, position, lane, kept.logits, params.temperature, kept.ids)


def choose_rows(logits: np.ndarray, params: SamplingParams, choice: int, first: int) -> tuple[int, ...]:
    """`choose` for consecutive positions first, first + 1, ... of one choice, from `logits` [rows, vocab]."""
    return tuple(choose(row, params, choice, first + index) for index, row in enumerate(logits))


def law(logits: np.ndarray, params: SamplingParams, position: int = 0) -> Floats:
    """The probabilities [vocab] with which `choose` chooses, one-hot if greedy. `position` only serves the error message."""
    probabilities = np.zeros(logits.shape[-1])
    if is_greedy(params):
        probabilities[_most_likely(logits, position)] = 1.0
        return probabilities
    kept = _candidates(logits, params, position)
    weights = _weights(kept.logits, params.temperature)
    weights /= weights.sum()
    if kept.ids is None:
        return weights
    probabilities[kept.ids] = weights
    return probabilities


def law_rows(logits: np.ndarray, params: SamplingParams, first: int = 0) -> Floats:
    """`law` of each row: float64 [rows, vocab]."""
    return np.stack([law(row, params, first + index) for index, row in enumerate(logits)])


def validate(params: SamplingParams, vocab: int) -> None:
    """Raises RequestRejected, naming the parameter, unless every field can be used with `vocab` tokens."""
    _whole("max_tokens", params.max_tokens, 0)
    _whole("min_tokens", params.min_tokens, 0, params.max_tokens, "max_tokens")
    if not _is_number(params.temperature) or params.temperature < 0:
        raise RequestRejected(
            f"temperature is {params.temperature!r}; give a finite number, 0 (greedy) or more", "temperature"
        )
    _whole("top_k", params.top_k, 0, note="0 keeps every candidate")
    _number("top_p", params.top_p, 0, 1)
    _number("min_p", params.min_p, 0, 1)
    _number("repetition_penalty", params.repetition_penalty, MIN_REPETITION, MAX_REPETITION)
    _number("presence_penalty", params.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _number("frequency_penalty", params.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    if not _is_int(params.seed):
        raise RequestRejected(f"seed is {params.seed!r}; give a whole number", "seed")
    _token_ids("stop_token_ids", params.stop_token_ids, vocab)
    biased = [token for token, _ in params.logit_bias]
    _token_ids("logit_bias", biased, vocab)
    for token, bias in params.logit_bias:
        _number("logit_bias", bias, -MAX_BIAS, MAX_BIAS, f" for token {token}")
    for before, token in pairwise(biased):
        if before >= token:
            raise RequestRejected(
                f"logit_bias names token {token} behind {before}; give each once, ascending", "logit_bias"
            )
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None:
            _whole(name, count, 0, MAX_LOGPROBS)


class _Candidates(NamedTuple):
    """The tokens that may be chosen: ids, ascending (None: all of them), and their logits."""

    ids: Ids | None
    logits: np.ndarray


def _most_likely(logits: np.ndarray, position: int) -> int:
    index = int(logits.argmax())  # stops at the first NaN, so looking at the winner finds any
    _check_highest(float(logits[index]), position)
    return index


def _candidates(logits: np.ndarray, params: SamplingParams, position: int) -> _Candidates:
    _check_highest(float(logits.max()), position)
    kept = _Candidates(None, logits)
    if 0 < params.top_k < len(logits):  # temperature keeps the order, so this cut may look at the raw logits
        ids = _top(logits, params.top_k)
        kept = _Candidates(ids, logits[ids])
    if params.top_p < 1:
        kept = _among(kept, _nucleus(kept.logits, params))
    if params.min_p > 0:
        kept = _among(kept, np.flatnonzero(_weights(kept.logits, params.temperature) >= params.min_p))
    return kept


def _among(kept: _Candidates, within: Ids) -> _Candidates:
    """The candidates at the ascending places `within`."""
    return _Candidates(within if kept.ids is None else kept.ids[within], kept.logits[within])


def _weights(logits: np.ndarray, temperature: float) -> Floats:
    """Unnormalised probabilities, 1 for the most likely."""
    weights = logits.astype(np.float64)
    weights -= weights.max()
    weights /= temperature
    return np.exp(weights, out=weights)


def _check_highest(highest: float, position: int) -> None:
    if not math.isfinite(highest):
        raise UnusableLogits(
            f"the model's logits for position {position} have {highest} as their highest value, so no token can be chosen; "
            "check the weights and the compute dtype"
        )


def _top(values: np.ndarray, count: int) -> Ids:
    """Indices of the `count` highest values, ascending; among equals the lowest indices."""
    if count >= len(values):
        return np.arange(len(values))
    pivot = len(values) - count
    threshold = np.partition(values, pivot)[pivot]
    above = np.flatnonzero(values > threshold)
    level = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, level)))


def _nucleus(logits: np.ndarray, params: SamplingParams) -> Ids:
    """Indices, ascending, of the fewest most likely candidates that hold `top_p` of the probability; at least one."""
    weights = _weights(logits, params.temperature)
    goal = params.top_p * weights.sum()
    size = _TOP_P_FIRST
    while True:
        head = _top(logits, size)
        head = head[np.argsort(-logits[head], kind="stable")]
        count = int(np.searchsorted(np.cumsum(weights[head]), goal)) + 1
        if count <= len(head) or len(head) == len(logits):
            return np.sort(head[:count])
        size *= _TOP_P_GROWTH


def _whole(
    name: str, value: object, low: int, high: int | None = None, high_name: str | None = None, note: str | None = None
) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high):
        return
    limit = f"of at least {low}" if high is None else f"from {low} to {high}"
    hint = f" ({high_name})" if high_name else f", {note}" if note else ""
    raise RequestRejected(f"{name} is {value!r}; give a whole number {limit}{hint}", name)


def _number(name: str, value: float, low: float, high: float, where: str = "") -> None:
    if not _is_number(value) or not low <= value <= high:
        raise RequestRejected(f"{name} is {value!r}{where}; give a number from {low:g} to {high:g}", name)


def _token_ids(name: str, tokens: Iterable[object], vocab: int) -> None:
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab:
            raise RequestRejected(f"{name} holds {token!r}; the model's token ids are 0 to {vocab - 1}", name)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
