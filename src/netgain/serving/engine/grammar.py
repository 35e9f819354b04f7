"""Structured output: grammars are compiled once, and say at every position which tokens may stand there.

The grammar describes the text that the client gets. A token that ends the output may stand only where the text matches, and
has to where the text cannot go on. Built on llguidance, which needs no torch; it comes with the serve extra and is
imported when the first grammar is compiled, so that this room works without it.
"""

import asyncio
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from netgain.errors import RequestRejected
from netgain.serving.engine.request import Grammar

Masks = npt.NDArray[np.uint32]

MAX_GRAMMAR_CHARACTERS = 65_536

# What compiling and every mask may cost at most: about a second, some tens of milliseconds, some tens of megabytes. Measured
# on hostile grammars; ordinary schemas need a hundredth.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 30_000,
    "max_lexer_states": 10_000,
    "max_grammar_size": 100_000,
}
# The library would allow only one spelling where the text is certain; the model shall choose among all.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
# Between the parts of JSON; unbounded, a model may write white space for ever.
_JSON_STYLE = {"whitespace_pattern": r"[ \t\r\n]{1,40}"}
_SPACE_CUT = re.compile(r"\s+")


class Constraint:
    """The grammar of one request, at the end of its committed output."""

    def __init__(self, matcher: Any, ends: frozenset[int]) -> None:
        self.matcher = matcher
        self.ends = ends

    def allowed_drafts(self, drafts: Sequence[int]) -> int:
        """How many of the first drafts the grammar can take, up to one that would end the output."""
        text = list(drafts)
        for index, token in enumerate(text):
            if token in self.ends:
                text = text[:index]
                break
        return int(self.matcher.validate_tokens(text)) if text else 0

    def extend(self, tokens: Sequence[int]) -> str | None:
        """`tokens` are committed. Returns why they cannot be, if the grammar forbids them or is too complex to follow."""
        ended = bool(tokens) and tokens[-1] in self.ends
        text = list(tokens[:-1] if ended else tokens)
        if self.matcher.is_error() or not (not text or self.matcher.consume_tokens(text)):
            return f"the grammar cannot be followed any further: {_reason(self.matcher)}"
        if ended and not self.matcher.is_accepting():
            return "the grammar cannot be followed any further: no token of the vocabulary continues it"
        return None


class Grammars:
    """Compiles grammars for one vocabulary, keeps the last `kept`, and computes the masks of a step.

    `token_bytes` gives what a token adds to the text, nothing for control tokens, which no grammar allows. `compile` may run
    on any thread; everything else belongs to the step loop.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], vocab_size: int, *, kept: int = 32) -> None:
        self._token_bytes = token_bytes
        self._vocab_size = vocab_size
        self._kept = kept
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()  # a matcher, or the RequestRejected
        self._lock = threading.Lock()  # around the cache
        self._compiling = threading.Lock()  # one at a time, so that hostile ones cannot take every core
        self._library: _Library | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._words = vocab_size // 32 + 1  # the id behind the last one stands for "the text may end here"

    def known(self, grammar: Grammar) -> bool:
        """Whether `start` need not compile."""
        with self._lock:
            return grammar in self._compiled

    async def prepare(self, grammar: Grammar) -> None:
        """Compile on a thread, while the loop goes on. Raises RequestRejected."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "grammar")
        await asyncio.get_running_loop().run_in_executor(self._worker, self.compile, grammar)

    def compile(self, grammar: Grammar) -> Any:
        """The matcher at the start of the text. Raises RequestRejected with the library's reason."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
        if found is None:
            if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
                raise RequestRejected(
                    f"the grammar has {len(grammar.text)} characters, the limit is {MAX_GRAMMAR_CHARACTERS}", "grammar"
                )
            with self._compiling:
                found = self._compile(grammar)
            with self._lock:
                self._compiled[grammar] = found
                while len(self._compiled) > self._kept:
                    self._compiled.popitem(last=False)
        if isinstance(found, RequestRejected):
            raise RequestRejected(str(found), found.parameter)
        return found

    def start(self, grammar: Grammar, ends: frozenset[int]) -> Constraint:
        """For a request whose output ends with one of `ends`. Raises RequestRejected."""
        if not ends:
            raise RequestRejected(
                "a grammar needs a token that ends the output, and there is none: leave out ignore_eos, or give stop_token_ids",
                "grammar",
            )
        return Constraint(self.compile(grammar).deep_copy(), ends)

    def masks(self, jobs: Sequence[tuple[Constraint, Sequence[int], int]]) -> list[Masks]:
        """For each (constraint, drafts, rows in which the end is unwelcome): uint32 [1 + drafts, words].

        Behind a draft that the grammar cannot take, or that ends the output, every token is allowed: nothing gets there. Where
        no token at all is allowed, or the grammar is too complex to say, every token is; `Constraint.extend` then
        refuses what was chosen.
        """
        assert self._library is not None, "a constraint exists, so something was compiled"
        starts = np.cumsum([0, *(1 + len(drafts) for _, drafts, _ in jobs)])
        table = np.zeros((int(starts[-1]), self._words), dtype=np.int32)
        taken = [list(drafts[: constraint.allowed_drafts(drafts)]) for constraint, drafts, _ in jobs]
        self._library.fill(
            [
                (constraint.matcher, int(start), drafts)
                for (constraint, _, _), start, drafts in zip(jobs, starts, taken, strict=False)
            ],
            table,
        )
        unsigned = table.view(np.uint32)
        masks = []
        for index, (constraint, _, unwelcome) in enumerate(jobs):
            mask = unsigned[starts[index] : starts[index + 1]]
            mask[1 + len(taken[index]) :] = 0
            self._set_ends(mask, constraint.ends, unwelcome)
            mask[~mask.any(axis=1)] = 0xFFFFFFFF
            if constraint.matcher.is_error():
                mask[:] = 0xFFFFFFFF
            masks.append(mask)
        return masks

    def close(self) -> None:
        """No more `prepare`; a compilation that runs is not waited for."""
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)

    def _set_ends(self, mask: Masks, ends: frozenset[int], unwelcome: int) -> None:
        """The end is allowed where the text matches; before min_tokens only where nothing else is."""
        word, bit = divmod(self._vocab_size, 32)
        matches = (mask[:, word] >> np.uint32(bit)) & 1 == 1
        for token in (*ends, self._vocab_size):
            mask[:, token // 32] &= ~np.uint32(1 << token % 32)
        may_end = matches & ((np.arange(len(mask)) >= unwelcome) | ~mask.any(axis=1))
        for token in ends:
            mask[may_end, token // 32] |= np.uint32(1 << token % 32)

    def _compile(self, grammar: Grammar) -> Any:
        if self._library is None:
            self._library = _Library(self._token_bytes, self._vocab_size)
        try:
            matcher = self._library.matcher(_source(grammar))
        except ValueError as error:
            return RequestRejected(f"the {_NAMES[grammar.kind]} cannot be used: {error}", "grammar")
        matcher.compute_bitmask()  # the first costs most, and tells whether the grammar can be followed at all
        if matcher.is_error():
            return RequestRejected(f"the {_NAMES[grammar.kind]} cannot be used: {_reason(matcher)}", "grammar")
        return matcher


class _Library:
    """llguidance, with the vocabulary in its form."""

    def __init__(self, token_bytes: Callable[[int], bytes], vocab_size: int) -> None:
        import llguidance  # not in the base install
        from llguidance import numpy as filling

        self._module = llguidance
        self._filling = filling
        self._executor = llguidance.LLExecutor()
        self._limits = llguidance.LLParserLimits(**_LIMITS, verbose_errors=False)
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(token_bytes, vocab_size)))

    def matcher(self, source: str) -> Any:
        return self._module.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)

    def fill(self, jobs: list[tuple[Any, int, list[int]]], table: npt.NDArray[np.int32]) -> None:
        """Write the masks of each (matcher, first row, drafts); every row behind a draft follows the one before."""
        alone = [(matcher, row) for matcher, row, drafts in jobs if not drafts]
        drafted = [job for job in jobs if job[2]]
        if alone:
            self._filling.fill_next_token_bitmask_par(self._executor, alone, table)
        if drafted:
            self._filling.fill_next_token_bitmask_par_with_draft_tokens(self._executor, drafted, table)


class _Vocabulary:
    """What TokenizerWrapper reads. One more token than the model has stands for the end of the text."""

    def __init__(self, token_bytes: Callable[[int], bytes], vocab_size: int) -> None:
        self.eos_token_id = vocab_size
        self.bos_token_id = None
        self.tokens = [*(token_bytes(token) for token in range(vocab_size)), b"<end>"]
        self.special_token_ids = [vocab_size]

    def __call__(self, text: str | bytes) -> list[int]:
        """How text is tokenised: only asked for where text is forced, which `_OPTIONS` switches off."""
        return []


_NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}


def _source(grammar: Grammar) -> str:
    """In the library's terms. Raises ValueError when it cannot even be read."""
    from llguidance import LLMatcher  # not in the base install

    if grammar.kind == "json_schema":
        return str(LLMatcher.grammar_from_lark(f"{_OPTIONS}start: %json {_schema(grammar.text)}"))
    if grammar.kind == "regex":
        source = json.loads(LLMatcher.grammar_from_regex(grammar.text))
        for part in source["grammars"]:
            part["lark_grammar"] = _OPTIONS + part["lark_grammar"]
        return json.dumps(source)
    return str(LLMatcher.grammar_from_lark(_OPTIONS + grammar.text))


def _schema(text: str) -> str:
    """The schema, written anew so that nothing else can hide in the text."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from error
    if isinstance(schema, dict):
        schema = {"x-guidance": _JSON_STYLE, **schema}
    elif not isinstance(schema, bool):
        raise ValueError(f"a schema is an object, true or false, not {text[:80]}")
    return json.dumps(schema)


def _reason(matcher: Any) -> str:
    """The library's error without the grammar's own text and without places in our form of it."""
    said = matcher.get_error()
    if said.startswith("NoExtensionBias"):
        return "no text matches it"
    lines = re.split(r"\n(?=\s*\d+ \| |<state>|<grammar>)", said)[0]
    return _SPACE_CUT.sub(" ", re.sub(r"^at \d+\(\d+\): ", "", lines)).strip()[:500]
