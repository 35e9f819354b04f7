"""The rule of equal resources: what differs refuses the comparison, what is unknown is said, and an override is kept with its
reason. Comparisons of scaling, in which resources differ on purpose, are another kind and adopt nothing."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from netgain.deciding.compare.traits import FIELDS, Traits, Value, check_name, written
from netgain.errors import UsageError

Kind = Literal["equal resources", "scaling"]
State = Literal["equal", "differs", "unknown", "overridden", "on purpose", "not needed"]
MEMORY_TOLERANCE = 0.01
_SETTLED = ("equal", "not needed", "overridden")
_COVERED: Mapping[str, str] = {
    "model": "weights",
    "kv_tokens": "memory",
}  # fields that do not count where another is equal


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One field of both sides. "not needed": it differs, and another field says more: names of the same weights, and tokens
    that fit the same memory."""

    field: str
    baseline: Value | None
    candidate: Value | None
    baseline_from: str | None
    candidate_from: str | None
    state: State
    reason: str | None = None

    @property
    def says(self) -> str:
        return f"{self.field} ({written(self.field, self.baseline)} against {written(self.field, self.candidate)})"


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison that is allowed. `caveats` are what it rests on without proof; `same_model`: that both serve the same
    weights in the same number types is known, not only assumed. `doubt`: what has to be known before one side is adopted, and is
    not (None: nothing). `factor`: of a scaling comparison, how many times the baseline's resource `per` the candidate has."""

    kind: Kind
    rows: tuple[Row, ...]
    caveats: tuple[str, ...]
    same_model: bool
    doubt: str | None = None
    per: str | None = None
    factor: float | None = None


def overrides_of(given: Sequence[str]) -> dict[str, str]:
    """Read each FIELD=REASON. Raises UsageError, also without a reason: it is what a reader of the report will ask for."""
    found: dict[str, str] = {}
    for text in given:
        name, _, reason = text.partition("=")
        check_name(name.strip(), tuple(FIELDS), "--override")
        if not reason.strip():
            raise UsageError(
                f'--override {name.strip()} gives no reason; write --override {name.strip()}="why it may differ"'
            )
        found[name.strip()] = reason.strip()
    return found


def rule(
    baseline: Traits, candidate: Traits, kind: Kind, overrides: Mapping[str, str], fields: Sequence[str]
) -> Ruling:
    """Compare `fields`. Raises UsageError that names every field which differs and may not."""
    rows = tuple(_row(name, baseline, candidate, kind, overrides) for name in fields)
    differing = [row for row in rows if row.state == "differs"]
    if differing:
        raise UsageError(_refusal(differing, kind))
    per, factor = _scale(rows) if kind == "scaling" else (None, None)
    return Ruling(
        kind=kind,
        rows=rows,
        caveats=_caveats(rows),
        same_model=_same_model({row.field: row.state for row in rows}),
        doubt=_doubt(rows),
        per=per,
        factor=factor,
    )


def _row(name: str, baseline: Traits, candidate: Traits, kind: Kind, overrides: Mapping[str, str]) -> Row:
    before, after = baseline.get(name), candidate.get(name)
    state: State
    if before is None or after is None:
        state = "unknown"
    elif _equal(name, before.value, after.value):
        state = "equal"
    elif name in _COVERED and _same(_COVERED[name], baseline, candidate):
        state = "not needed"
    elif kind == "scaling" and FIELDS[name].part in ("resources", "limits") and name != "device":
        state = "on purpose"
    else:
        state = "differs"
    if state in ("differs", "unknown") and name in overrides:
        state = "overridden"
    return Row(
        field=name,
        baseline=None if before is None else before.value,
        candidate=None if after is None else after.value,
        baseline_from=None if before is None else before.source,
        candidate_from=None if after is None else after.source,
        state=state,
        reason=overrides.get(name) if state == "overridden" else None,
    )


def _equal(name: str, before: Value, after: Value) -> bool:
    if name == "memory" and isinstance(before, int) and isinstance(after, int):
        return abs(before - after) <= MEMORY_TOLERANCE * max(before, after)
    return before == after


def _same(name: str, baseline: Traits, candidate: Traits) -> bool:
    before, after = baseline.get(name), candidate.get(name)
    return before is not None and after is not None and _equal(name, before.value, after.value)


def _same_model(states: Mapping[str, State]) -> bool:
    named = states.get("weights") == "equal" or states.get("model") == "equal"
    return named and states.get("dtype") == "equal" and states.get("kv_dtype") in (None, "equal")


def _scale(rows: Sequence[Row]) -> tuple[str, float]:
    """What was scaled: devices, or on one CPU its threads. Raises UsageError where that is unknown or did not change."""
    known = {row.field: row for row in rows}
    for name in ("devices", "threads"):
        row = known.get(name)
        if row is not None and isinstance(row.baseline, int) and isinstance(row.candidate, int):
            if row.baseline != row.candidate:
                return name, row.candidate / row.baseline
        elif name == "devices":
            raise UsageError(
                "--scaling needs to know how many devices each side has: declare them, as in --baseline-is devices=1 "
                "--candidate-is devices=2"
            )
    raise UsageError(
        "--scaling is for sides with different numbers of devices (or threads), and these have the same: leave it out"
    )


def _refusal(differing: Sequence[Row], kind: Kind) -> str:
    told = ", ".join(row.says for row in differing)
    parts = {FIELDS[row.field].part for row in differing}
    first = differing[0].field
    remedies = [f'accept it with --override {first}="REASON"']
    if parts <= {"resources", "limits"} and kind == "equal resources" and first != "device":
        remedies.append("or, if resources differ on purpose, use --scaling")
    elif first == "model":
        remedies.insert(
            0, "if both are the same model under two names, declare it on both sides (--baseline-is model=NAME)"
        )
    elif first == "time":
        remedies.insert(0, "measure both in turns, or compare the running servers")
    what = "at equal resources" if kind == "equal resources" else "of scaling"
    return f"this is no comparison {what}: the sides differ in {told}; make them equal, {', '.join(remedies)}"


def _doubt(rows: Sequence[Row]) -> str | None:
    """Memory, limits and the rest may stay unknown with a caveat. How many devices there are, and which model in which number
    types, may not: a gain may be bought by any of them."""
    states = {row.field: row.state for row in rows}
    needed = ["dtype", "devices"]
    if states.get("model") not in _SETTLED:
        needed.insert(0, "weights")
    missing = [row for row in rows if row.field in needed and row.state == "unknown"]
    if not missing:
        return None
    names = " and ".join(row.field for row in missing)
    sides = (
        ("baseline", [row.field for row in missing if row.baseline is None]),
        ("candidate", [row.field for row in missing if row.candidate is None]),
    )
    how = " ".join(f"--{side}-is {','.join(f'{name}=...' for name in own)}" for side, own in sides if own)
    return (
        f"{names} {'is' if len(missing) == 1 else 'are'} not known of both sides, so equal resources are not shown: declare what "
        f'they are ({how}), or accept it with --override {missing[0].field}="REASON"'
    )


def _caveats(rows: Sequence[Row]) -> tuple[str, ...]:
    said: list[str] = []
    equal = {row.field for row in rows if row.state == "equal"}
    unknown = [row.field for row in rows if row.state == "unknown" and _COVERED.get(row.field) not in equal]
    if "kv_tokens" in equal and "memory" in unknown:
        unknown.remove("memory")
        said.append("That both have the same memory rests on the tokens that their KV caches hold.")
    elif {"kv_tokens", "memory"} <= set(unknown):
        unknown.remove("kv_tokens")
    if "weights" in unknown and "model" in equal:
        unknown.remove("weights")
        said.append("That both serve the same weights rests on the model's name: at least one side tells no digest.")
    if "threads" in unknown and not any(row.baseline == "cpu" for row in rows if row.field == "device"):
        unknown.remove("threads")
    if unknown:
        names = ", ".join(unknown)
        said.append(
            f"Not known of both sides, so not known to be equal: {names}. Declare them with --baseline-is and --candidate-is."
        )
    said += [
        f"{row.says[0].upper()}{row.says[1:]}: allowed by an override, with the reason: {row.reason}"
        for row in rows
        if row.state == "overridden"
    ]
    declared = sorted({row.field for row in rows if "declared" in (row.baseline_from, row.candidate_from)})
    if declared:
        said.append(f"Declared by the user and not verified: {', '.join(declared)}.")
    return tuple(said)
