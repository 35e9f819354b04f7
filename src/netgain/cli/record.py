"""`netgain record`: a recording proxy, the import of other servers' logs, and a recording in figures."""

import datetime
import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from netgain.documents import to_json
from netgain.errors import UsageError
from netgain.measuring.record.importing import FORMATS, Format, import_logs
from netgain.measuring.record.journal import read_recording
from netgain.measuring.record.serve import RecordSettings, record
from netgain.measuring.record.show import show
from netgain.measuring.record.summary import summarise

app = typer.Typer(invoke_without_command=True, help="Record traffic, import logs, look into recordings.")

_FOLDER = Path("netgain-recordings")


@app.callback()
def main(
    context: typer.Context,
    upstream: Annotated[
        str | None, typer.Option(metavar="URL", help="The OpenAI-compatible server to pass requests on to.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8100,
    output: Annotated[
        Path | None, typer.Option(help="File to append to; by default a new one in netgain-recordings.")
    ] = None,
    ask_usage: Annotated[
        bool, typer.Option("--ask-usage", help="Ask streams for token counts; clients do not see the extra chunk.")
    ] = False,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Keep prompts and answers, readable by you only.")
    ] = False,
    rotate_mb: Annotated[
        float | None,
        typer.Option(help="Set the file aside as FILE.1, FILE.2, ... when it has grown to this.", min=0.001, max=1e9),
    ] = None,
) -> None:
    """Pass requests on unchanged and record arrivals, lengths, shared prefixes and timings, without any text."""
    if context.invoked_subcommand is not None:
        if upstream is not None:
            raise UsageError("--upstream records a running server; it does not go together with a subcommand")
        return
    if upstream is None:
        raise UsageError("name the server to record, --upstream http://127.0.0.1:8000, or see netgain record --help")
    path = output or _fresh("recording")
    if with_text:
        _say(f"warning: prompts and answers are kept as they are in {path}")
    record(
        RecordSettings(
            upstream=upstream,
            host=host,
            port=port,
            output=path,
            ask_usage=ask_usage,
            with_text=with_text,
            rotate_bytes=None if rotate_mb is None else int(rotate_mb * 1e6),
        ),
        _say,
    )
    _tell(path, asked_usage=ask_usage)


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Log files.", show_default=False)],
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="File to write; by default a new one in netgain-recordings.")
    ] = None,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Keep prompts and answers that the log holds, readable by you only.")
    ] = False,
) -> None:
    """Make a recording of another server's log, or of a public trace."""
    if format_ not in FORMATS:
        raise UsageError(f"there is no format {format_!r}; known: {', '.join(FORMATS)}")
    path = output or _fresh(format_)
    if path.exists() and path.stat().st_size:
        raise UsageError(f"{path} exists already; name another file with --output")
    done = import_logs(files, cast(Format, format_), path, with_text=with_text)
    for reason, count in sorted(done.skipped.items(), key=lambda pair: -pair[1]):
        _say(f"not imported: {count} x {reason}")
    _tell(path)


@app.command()
def summary(
    file: Annotated[Path, typer.Argument(help="A recording.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show rate, lengths, concurrency and possible prefix reuse of a recording."""
    found = summarise(read_recording(file))
    if json:
        sys.stdout.write(to_json(found).decode())
    else:
        for line in show(found):
            print(line)


def _tell(path: Path, asked_usage: bool = False) -> None:
    """The recording in figures, and what it can be used for."""
    found = summarise(read_recording(path))
    for line in show(found, asked_usage):
        print(line)
    print(f"\nrecording: {path}")
    if found.with_text:
        print(f"use it: netgain decide --workload {path}")
    else:
        print("it holds no text: enough for load, lengths, timings and prefix reuse, as above")
        print("netgain decide needs the text to judge drafting by copying: record or import again with --with-text")


def _fresh(name: str) -> Path:
    """A new file of the user's folder of recordings, which is made if it is not there."""
    try:
        _FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {_FOLDER}: {error.strerror}; name a file with --output") from error
    return _FOLDER / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name}.jsonl"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
