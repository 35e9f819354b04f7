"""A break-even surface as a document: what was assumed, what was measured, what was predicted from both, and what was checked."""

from pathlib import Path
from typing import Literal

import msgspec

from netgain.cost.break_even import LABEL, Checked, Surface, speedup_of
from netgain.cost.step_cost import StepCost
from netgain.documents import to_json, write_folder
from netgain.errors import UsageError

SCHEMA, VERSION = "netgain.draft-surface", 1
HTML, JSON = "report.html", "draft-surface.json"


class OwnDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A draft that somebody has, on the surface: `survival[i]` is how often its first i + 1 tokens all stood, by `origin`.
    `speedups` by plane and column; None where steps or survival were not measured."""

    name: str
    survival: tuple[float, ...]
    origin: str
    speedups: tuple[tuple[float | None, ...], ...]


class DraftSurface(msgspec.Struct, frozen=True, kw_only=True):
    """`subject` says what the curve is of, `measured_at` when, in Unix seconds. `price_basis`: where the cost of a draft is
    from. `checked` is empty where no engine was run."""

    schema: Literal["netgain.draft-surface"] = "netgain.draft-surface"
    version: Literal[1] = 1
    label: str = LABEL
    model: str
    created: str
    netgain: str
    subject: dict[str, str]
    measured_at: float | None
    surface: Surface
    price_basis: str
    draft: OwnDraft | None
    checked: tuple[Checked, ...]
    context: dict[str, str | float | None]

    @property
    def cannot_show(self) -> tuple[str, ...]:
        """What the figures leave out."""
        found = self.surface
        said = [
            "Acceptance is assumed to be the same at every position. Drafts that exist are accepted less the further they reach, "
            "so read a long one at the acceptance of its last tokens, not of its first.",
            "Figures are of decoding alone: prompts, time to first token and waiting are not in them.",
        ]
        if found.price.share:
            said.append(
                f"A pass of the draft is taken to cost {found.price.share:.0%} of a plain step at every batch; what it reads of "
                "prompts is not in the figures."
            )
        else:
            said.append("Drafts are taken to cost nothing to make, as those copied from text nearly do.")
        if found.nearest_context:
            said.append(
                f"Not every step was measured at {found.context} tokens of context: costs are then those at the nearest context."
            )
        if any(column is None for plane in found.planes for column in plane.columns):
            said.append("Steps that were not measured are left empty: a cost is never extrapolated.")
        return tuple(said)


def own_draft(found: Surface, name: str, survival: tuple[float, ...], origin: str) -> OwnDraft:
    """Place a draft whose survival was measured on a surface of its price."""
    return OwnDraft(
        name=name,
        survival=survival,
        origin=origin,
        speedups=tuple(
            tuple(
                None
                if column is None or column.k > len(survival)
                else speedup_of(survival[: column.k], column.verify, column.drafting)
                for column in plane.columns
            )
            for plane in found.planes
        ),
    )


def read_curve(path: Path) -> StepCost:
    """A file of what `/netgain/step-cost` answers. Raises UsageError."""
    try:
        return StepCost.from_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the step-cost curve in {path} cannot be read: {error.strerror or error}; save what GET /netgain/step-cost answers"
        ) from error


def write_surface(document: DraftSurface, folder: Path) -> Path:
    """Write the files and return the path of the HTML. Raises UsageError when the folder cannot be written."""
    from netgain.deciding.report.surface_page import render_surface

    write_folder(folder, {JSON: to_json(document), HTML: render_surface(document)})
    return folder / HTML
