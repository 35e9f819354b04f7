"""The report as one self-contained HTML file: it needs no network and shows only what the JSON beside it holds."""

import shlex
from importlib import resources

import jinja2
from markupsafe import Markup

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.verdict import change
from netgain.deciding.report import figures, svg
from netgain.deciding.report.cost import cost_notes, cost_rows
from netgain.deciding.report.handoffs import COLUMNS, handoff_notes, handoff_rows
from netgain.deciding.report.must_report import reported
from netgain.deciding.report.must_report_kv import KV_ROWS
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.report.settings_table import setting_rows, summary, versions
from netgain.deciding.report.slo_svg import attained_svg, slo_curve_svg
from netgain.deciding.report.sweep_svg import sweep_svg
from netgain.deciding.report.timeline_svg import timeline_svg
from netgain.deciding.technique.prediction import Prediction

TEMPLATE = "template.html.j2"


def render_html(outcome: Outcome) -> str:
    """Render. All text from outside (prompts' ids, model names, errors) is escaped."""
    return (
        templates()
        .get_template(TEMPLATE)
        .render(
            o=outcome,
            a=outcome.analysis,
            v=outcome.analysis.verdict if outcome.analysis else None,
            pictures=_pictures(outcome),
            owed=reported(outcome),
            owed_of_tiers=any(asked in KV_ROWS for asked in outcome.must_report),
            told=outcome.settings,
            arms={arm.name: arm for arm in outcome.arms},
            BASELINE=BASELINE,
            CANDIDATE=CANDIDATE,
        )
    )


def templates() -> jinja2.Environment:
    """The templates of this room, with figures written as everywhere."""
    folder = resources.files("netgain.deciding.report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ms=figures.ms,
        seconds=figures.seconds,
        times=figures.times,
        share=figures.share,
        signed_share=figures.signed_share,
        number=figures.number,
        chance=figures.chance,
        size=figures.size,
        rate=figures.rate,
        cost_rows=cost_rows,
        cost_notes=cost_notes,
        setting_rows=setting_rows,
        settings_summary=summary,
        settings_versions=versions,
        handoff_rows=handoff_rows,
        handoff_notes=handoff_notes,
        change=change,
        capitalize_first=_capitalised,
        command=shlex.join,
    )
    environment.globals.update(HANDOFF_COLUMNS=COLUMNS)
    return environment


def _capitalised(text: str) -> str:
    """With a capital at its beginning; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def _pictures(outcome: Outcome) -> dict[str, Markup | None]:
    arms = {arm.name: arm for arm in outcome.arms if arm.name in (BASELINE, CANDIDATE)}
    analysis = outcome.analysis
    prediction = outcome.prediction
    counts = outcome.drafting.counts if outcome.drafting else None
    return {
        "interval": (
            svg.interval_svg(
                analysis.verdict.primary,
                analysis.verdict.threshold,
                prediction.speedup_e2e if prediction else None,
            )
            if analysis and analysis.verdict.primary
            else None
        ),
        "sweep": sweep_svg(outcome.sweep, analysis.verdict.threshold) if analysis and outcome.sweep else None,
        "attained": attained_svg(outcome.sweep),
        "slo": slo_curve_svg(analysis.slo_curve) if analysis else None,
        "timeline": timeline_svg(outcome.blocks),
        "waterfall": svg.waterfall_svg(analysis.waterfall) if analysis and analysis.waterfall else None,
        "e2e": svg.ecdf_svg({name: arm.e2e_s for name, arm in arms.items()}, "end-to-end seconds", 1.0),
        "tpot": svg.ecdf_svg({name: arm.tpot_s for name, arm in arms.items()}, "milliseconds per output token", 1e3),
        "shares": svg.shares_svg({name: arm.stage_share for name, arm in arms.items()}) if arms else None,
        "acceptance": svg.acceptance_svg(counts.drafted, counts.accepted, survival(prediction)) if counts else None,
    }


def survival(prediction: Prediction | None) -> list[float | None]:
    """Predicted share of drafts accepted per position."""
    if prediction is None or prediction.drafts is None:
        return []
    return list(prediction.drafts.acceptance)
