"""`netgain serve`: one model behind an OpenAI-compatible API."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from netgain.serving.api.server import run_server
from netgain.serving.runtime.config import ServerConfig
from netgain.serving.runtime.config_file import load_config, to_yaml


def serve(
    model: Annotated[
        str | None, typer.Argument(help="'default', a folder, a .gguf file or a Hugging Face id.", metavar="MODEL")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8000); 0 takes a free one.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="One setting, e.g. engine.cache.kv_tokens=4096. May be repeated."
        ),
    ] = None,
    speculation: Annotated[str | None, typer.Option(help="Drafting method: none or ngram.")] = None,
    records: Annotated[Path | None, typer.Option(help="JSONL file that request records are appended to.")] = None,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API."""
    named: dict[str, Any] = {
        "engine.model.source": model,
        "host": host,
        "port": port,
        "engine.speculation.method": speculation,
        "records": None if records is None else str(records),
    }
    effective = load_config(
        ServerConfig, config, set_ or (), {name: value for name, value in named.items() if value is not None}
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    print(f"# effective configuration\n{to_yaml(effective)}", flush=True)
    asyncio.run(run_server(effective, _announce))


def _announce(url: str) -> None:
    print(f"serving at {url}/v1", flush=True)
