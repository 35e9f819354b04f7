"""A model fetched from the Hugging Face Hub, or from a mirror named by HF_ENDPOINT: only the files that are loaded, into the
Hub's own cache, which is used where it already holds them."""

from __future__ import annotations

from pathlib import Path

from netgain.errors import Unavailable, UsageError
from netgain.serving.model.fields import read_json

_DESCRIPTION = ("*.json", "*.jinja", "tokenizer.model")
_TEMPLATES = "additional_chat_templates/*.jinja"
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def fetch_from_hub(name: str) -> Path:
    """The folder of model `name` (org/name) in the Hub's cache, at one revision.

    Repositories often hold the same weights several times; of them only model.safetensors is fetched, or the shards that
    its index names. Raises Unavailable with the manual step when they cannot be had.
    """
    manual = f"download its files on a machine with access (hf download {name} --local-dir FOLDER) and give that folder"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UsageError(
            f"{name!r} is no local path, and huggingface_hub is not installed to fetch it; {manual}"
        ) from error
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(_DESCRIPTION), ignore_patterns=["*/*"]))
        wanted = _weights(folder)
        # The folder is named after its commit: the weights are those of the same one, whatever is pushed meanwhile.
        folder = Path(snapshot_download(name, revision=folder.name, allow_patterns=[*wanted, _TEMPLATES]))
    except UsageError:
        raise
    except Exception as error:  # the library's own errors, and those of the HTTP client below it
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise Unavailable(
            f"{name!r} is no local path and cannot be fetched from Hugging Face ({reason}); {manual}"
        ) from error
    absent = [file for file in wanted if not (folder / file).is_file()]
    if absent:
        raise UsageError(f"{name!r} on Hugging Face lacks {absent[0]}; only models with safetensors weights are served")
    return folder


def _weights(folder: Path) -> list[str]:
    """Names of the files that hold weights, as SafetensorsSource looks for them."""
    if not (folder / _INDEX).is_file():
        return [_SINGLE]
    place = read_json(folder / _INDEX).get("weight_map")
    shards = {shard for shard in place.values() if isinstance(shard, str)} if isinstance(place, dict) else set()
    return sorted(shards) or [_SINGLE]
