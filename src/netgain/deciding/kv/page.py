"""An experiment on KV tiers as one self-contained HTML page: it needs no network and shows only what the JSON beside it holds."""

from netgain.deciding.kv.outcome import KVExperiment
from netgain.deciding.report.bars_svg import Bar, bars_svg
from netgain.deciding.report.html import templates

TEMPLATE = "kv_experiment.html.j2"
CLASSES = {"gain": "gain", "loss": "loss", "cannot tell": "unsure"}


def render_experiment(outcome: KVExperiment) -> str:
    """Render. All text from outside (model names, settings, errors) is escaped."""
    lengths = sorted({length for step in outcome.steps for role in step.roles for length, _ in role.hits.lengths})
    groups = {
        step.title: [
            Bar(role.title, role.ttft_mean_s, role.ttft_p95_s, "bar-candidate" if role.decisions else "bar-baseline")
            for role in step.roles
        ]
        for step in outcome.steps
    }
    return (
        templates()
        .get_template(TEMPLATE)
        .render(
            o=outcome,
            lengths=lengths,
            classes=CLASSES,
            picture=bars_svg(
                groups, "Mean time to the first token, by step and side", "milliseconds to the first token"
            ),
        )
    )
