"""`netgain guard`: does a deployed service still keep its verdict? Asks the service's own metrics, and nothing else."""

import asyncio
import datetime
from pathlib import Path
from typing import Annotated

import typer

from netgain.cli.exit_codes import AGAINST, CANNOT_TELL, DONE
from netgain.cli.headers import header as read_header
from netgain.cli.lab_options import Headers
from netgain.cost.quantity import duration
from netgain.deciding.experiment.arms.shell import run_to_its_end
from netgain.deciding.guard.alert import alert_rules
from netgain.deciding.guard.watch import Guard, Status, engine_at, watch
from netgain.deciding.verdict.document import VerdictDocument
from netgain.deciding.verdict.store import read_verdict
from netgain.errors import UsageError
from netgain.measuring.observe.names import Engine, known_engine
from netgain.secrecy import without_secrets


def guard(
    verdict: Annotated[Path, typer.Argument(help="verdict.json, or the folder of a report.", metavar="VERDICT")],
    url: Annotated[
        str | None, typer.Argument(help="The deployed service, such as http://10.0.0.5:8000.", metavar="[URL]")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Judge one window and exit: 0 holds, 4 go back, 3 cannot tell.")
    ] = False,
    interval: Annotated[str, typer.Option(help="Between two looks at the metrics.")] = "15s",
    timeout: Annotated[str, typer.Option(help="With --once: how long a window may take to fill.")] = "10min",
    state: Annotated[
        Path | None,
        typer.Option(
            help="With --once: keep the window's beginning in this file, look once and exit; for cron.",
            show_default=False,
        ),
    ] = None,
    on_rollback: Annotated[
        str | None, typer.Option(help="Shell command that is run once when the rule says to go back; then guard exits.")
    ] = None,
    on_rollback_limit: Annotated[
        str, typer.Option(help="How long that command may take; then it is ended, with what it started.")
    ] = "30min",
    alert: Annotated[
        Path | None,
        typer.Option(help="Write the rule as a Prometheus rule file and exit; - prints it.", show_default=False),
    ] = None,
    alert_window: Annotated[
        str, typer.Option(help="With --alert: the window of its rates, as PromQL writes it.")
    ] = "10m",
    header: Headers = None,
) -> int:
    """Watch the rollback rule of a verdict on the service that was deployed by it, through its /metrics."""
    document = read_verdict(verdict)
    if document.rollback is None or not document.rollback.paces:
        raise UsageError(f"{verdict} has no rule for going back: the baseline's time per output token was not measured")
    if document.void:
        raise UsageError(
            f"{verdict} is of a run that proves nothing ({document.headline}), so its thresholds do not either; decide again"
        )
    limit_s = duration(on_rollback_limit).value
    headers = dict(read_header(text) for text in header or ())
    if alert is not None:
        text = alert_rules(document, _engine(document, url, headers), alert_window)
        if str(alert) == "-":
            print(text, end="")
        else:
            _write(alert, text)
        return DONE
    if url is None:
        raise UsageError(
            "name the service, such as netgain guard verdict.json http://10.0.0.5:8000, or ask for --alert FILE"
        )
    if state is not None and not once:
        raise UsageError("--state keeps a window between runs with --once; without it guard keeps watching")
    watched = Guard(document.rollback, url, headers)
    if state is not None:
        watched.restore(state)
    print(document.rollback.says, flush=True)
    if document.decision != "adopt":
        print(f"note: the verdict was {document.decision}, so the baseline is what it advises to run", flush=True)
    last: list[Status] = []

    def on_status(status: Status) -> bool:
        print(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {status.says}", flush=True)
        last[:] = [status]
        found = status.finding
        return found is not None and (once or (found.state == "rollback" and on_rollback is not None))

    patience_s = (0.0 if state is not None else duration(timeout).value) if once else None
    asyncio.run(watch(watched, max(0.1, duration(interval).value), on_status, patience_s))
    if state is not None:
        watched.keep(state)
    found = last[0].finding if last else None
    if found is not None and found.state == "rollback":
        if on_rollback is not None:
            code = run_to_its_end(on_rollback, limit_s)
            ended = f"took longer than {on_rollback_limit} and was ended" if code is None else f"ended with {code}"
            print(f"{without_secrets(on_rollback)!r} {ended}", flush=True)
        return AGAINST
    if found is None:
        print(
            "cannot tell: no window was full"
            + ("" if state is None else " yet; the same command again goes on with it")
        )
    return DONE if found is not None and found.state == "holds" else CANNOT_TELL


def _engine(document: VerdictDocument, url: str | None, headers: dict[str, str]) -> Engine:
    """The engine at the URL, else that of the verdict's arms."""
    if url is not None:
        return asyncio.run(engine_at(url, headers))
    named = {arm.engine for arm in document.arms if arm.engine is not None}
    if len(named) == 1 and (engine := known_engine(named.pop())) is not None:
        return engine
    raise UsageError("the verdict does not tell which engine is deployed; give the service's URL too")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}); name another file") from error
