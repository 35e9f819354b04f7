"""`netgain serve`: one model behind an OpenAI-compatible API."""

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from netgain.event_loop import new_loop
from netgain.serving.api.launch import launch_server
from netgain.serving.runtime.config import ServerConfig
from netgain.serving.runtime.config_file import load_config, to_yaml
from netgain.serving.runtime.settings import ActivationsType, KVType, WeightType
from netgain.wording import count

_EXTRA = ("fastapi", "tokenizers", "torch", "uvicorn")


def serve(
    model: Annotated[
        str | None, typer.Argument(help="'default', a folder, a .gguf file or a Hugging Face id.", metavar="MODEL")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8000); 0 takes a free one.")] = None,
    dtype: Annotated[WeightType | None, typer.Option(help="How weights are kept (auto).")] = None,
    kv_dtype: Annotated[KVType | None, typer.Option(help="How keys and values are stored (auto).")] = None,
    activations: Annotated[
        ActivationsType | None, typer.Option(help="What activations are rounded to in products (auto).")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="One setting, e.g. engine.cache.kv_tokens=4096. May be repeated."
        ),
    ] = None,
    speculation: Annotated[str | None, typer.Option(help="Drafting method: none, ngram, suffix, draft or mtp.")] = None,
    draft: Annotated[str | None, typer.Option(help="Model or trained draft, for --speculation draft.")] = None,
    kv_tier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIER",
            help="Where KV goes beyond the device, fast to slow: dram:2GiB, disk:FOLDER:10GiB, valkey://HOST:PORT/0 or "
            "s3://BUCKET/PREFIX. May be repeated.",
        ),
    ] = None,
    kv_policy: Annotated[
        str | None, typer.Option(help="Load KV where that is predicted sooner (measured), always or never.")
    ] = None,
    records: Annotated[Path | None, typer.Option(help="JSONL file that request records are appended to.")] = None,
    api_keys: Annotated[Path | None, typer.Option(help="File of API keys, made by 'netgain keys new'.")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the whole effective configuration as YAML and exit.")
    ] = False,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API."""
    named: dict[str, Any] = {
        "engine.model.source": model,
        "engine.model.dtype": dtype,
        "engine.model.kv_dtype": kv_dtype,
        "engine.model.activations": activations,
        "host": host,
        "port": port,
        "engine.speculation.method": speculation,
        "engine.speculation.draft": draft,
        "engine.kv.tiers": kv_tier or None,
        "engine.kv.policy": kv_policy,
        "records": None if records is None else str(records),
        "auth.keys_file": None if api_keys is None else str(api_keys),
    }
    effective = load_config(
        ServerConfig, config, set_ or (), {name: value for name, value in named.items() if value is not None}
    )
    if print_config:
        print(to_yaml(effective), end="")
        return
    for package in _EXTRA:  # said before a process is launched that would miss it, too
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(launch_server(effective, _announce))


def _announce(url: str, info: Mapping[str, Any], keys: int | None) -> None:
    """What serves, in a line each; the last one is the URL."""
    note = f" ({info['kernels_note']})" if info["kernels_note"] else ""
    capacity = f"{info['kv_tokens']:,} tokens, {info['kv_tokens'] * info['kv_token_bytes'] / 2**20:,.0f} MiB"
    drafts = (
        f"drafts by {info['draft']}: {info['draft_weight_bytes'] / 2**20:,.0f} MiB of weights and "
        f"{info['draft_kv_token_bytes']:,} of the {info['kv_token_bytes']:,} bytes that a token takes in the KV cache\n"
        if info["draft"]
        else ""
    )
    tiers = (
        f"KV beyond the device: {', '.join(info['kv_tiers'])}; policy {info['kv_policy']}{_coded(info)}\n"
        if info["kv_tiers"]
        else ""
    )
    access = (
        "no API key is asked for"
        if keys is None
        else f"{count(keys, 'API key')} {'is' if keys == 1 else 'are'} accepted"
    )
    print(
        f"{info['model']}: {info['dtype']} weights, kernels {info['kernels']}{note}, {info['device']}, "
        f"{count(info['threads'], 'thread')}\n"
        + "".join(f"note: {info[name]}\n" for name in ("model_note", "settings_note") if info[name])
        + drafts
        + tiers
        + f"KV cache: {capacity} of {info['kv_dtype']}; up to {info['max_length']:,} per request; {access}\n"
        f"serving at {url}/v1",
        flush=True,
    )


def _coded(info: Mapping[str, Any]) -> str:
    """How KV in tiers may be coded."""
    if not info["kv_codecs"]:
        return ""
    return f"; coded as {', '.join(info['kv_codecs'])}, {'LOSSY' if info['kv_lossy'] else 'every bit comes back'}"
