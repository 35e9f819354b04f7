"""A comparison as one self-contained HTML page: it needs no network and shows only what the JSON beside it holds."""

from collections.abc import Iterator

from markupsafe import Markup

from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.compare.traits import written
from netgain.deciding.experiment.arms.settings_told import ArmSettings
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report import svg
from netgain.deciding.report.html import templates
from netgain.deciding.report.slo_svg import attained_svg, slo_curve_svg
from netgain.deciding.report.sweep_svg import sweep_svg
from netgain.deciding.report.timeline_svg import timeline_svg
from netgain.measuring.observe.names import Figure

TEMPLATE = "compare.html.j2"


def render_comparison(outcome: Comparison) -> str:
    """Render. All text from outside (model names, prompts' ids, errors, reasons) is escaped."""
    return (
        templates()
        .get_template(TEMPLATE)
        .render(
            o=outcome,
            a=outcome.analysis,
            v=outcome.analysis.verdict,
            word=outcome.word,
            arms={arm.name: arm for arm in outcome.arms},
            pictures=_pictures(outcome),
            counted=list(_counted(outcome)),
            told=settings_of(outcome),
            written=written,
            BASELINE=BASELINE,
            CANDIDATE=CANDIDATE,
        )
    )


def _pictures(outcome: Comparison) -> dict[str, Markup | None]:
    arms = {arm.name: arm for arm in outcome.arms if arm.name in (BASELINE, CANDIDATE)}
    analysis = outcome.analysis
    primary = analysis.verdict.primary
    shares = {name: arm.stage_share for name, arm in arms.items()}
    return {
        "interval": None if primary is None else svg.interval_svg(primary, analysis.verdict.threshold, None),
        "sweep": None if outcome.sweep is None else sweep_svg(outcome.sweep, analysis.verdict.threshold),
        "attained": attained_svg(outcome.sweep),
        "waterfall": None if analysis.waterfall is None else svg.waterfall_svg(analysis.waterfall),
        "e2e": svg.ecdf_svg({name: arm.e2e_s for name, arm in arms.items()}, "end-to-end seconds", 1.0),
        "tpot": svg.ecdf_svg({name: arm.tpot_s for name, arm in arms.items()}, "milliseconds per output token", 1e3),
        "slo": slo_curve_svg(analysis.slo_curve),
        "timeline": timeline_svg(outcome.blocks),
        "shares": svg.shares_svg(shares) if any(shares.values()) else None,
    }


def _counted(outcome: Comparison) -> Iterator[tuple[str, str, str]]:
    before, after = (outcome.sides[name].figures for name in (BASELINE, CANDIDATE))
    for name in dict.fromkeys((*before, *after)):
        values = _value(before.get(name)), _value(after.get(name))
        if values != ("unknown", "unknown"):
            yield name.replace("_", " "), *values


def _value(figure: Figure | None) -> str:
    """What a counter gained, or the mean of anything else."""
    value = None if figure is None else figure.gained if figure.role == "counter" else figure.mean
    return "unknown" if value is None or figure is None else f"{value:,.4g} {figure.unit}"


def settings_of(outcome: Comparison) -> list[ArmSettings]:
    """What each side tells of its settings."""
    return [
        ArmSettings(name=name, engine=side.engine, version=side.version, settings=side.told or None)
        for name, side in outcome.sides.items()
    ]
