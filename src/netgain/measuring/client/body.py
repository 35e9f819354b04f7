"""The bytes of a request, made before the run so that nothing is encoded while time counts."""

from typing import Any

import msgspec

from netgain.measuring.client.options import Options
from netgain.measuring.workload.item import Item


class Prepared(msgspec.Struct, frozen=True):
    """One item, ready to be sent: `path` below the base URL and the JSON body."""

    item: Item
    path: str
    body: bytes

    def salted(self, salt: str) -> "Prepared":
        """The same request under a `cache_salt`: it shares no prefix-cache entry with other salts."""
        body = b'%b,"cache_salt":%b}' % (self.body[:-1], msgspec.json.encode(salt))
        return Prepared(self.item, self.path, body)


def prepare(item: Item, model: str, options: Options, to_netgain: bool, joins_chunks: bool = False) -> Prepared:
    """Build the streaming request. The `netgain` object is only added for a netgain server, since others may refuse it, and the
    item's chunks only where the server joins them: its text is the same everywhere."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "max_tokens": item.max_tokens,
        "temperature": item.temperature,
    }
    if item.prompt is not None:
        path = "/v1/completions"
        body["prompt"] = item.prompt
    else:
        path = "/v1/chat/completions"
        body["messages"] = item.messages
    for name, value in (("top_p", item.top_p), ("top_k", item.top_k), ("seed", item.seed)):
        if value is not None:
            body[name] = value
    if item.stop:
        body["stop"] = item.stop
    if item.ignore_eos:
        body["ignore_eos"] = True
    body["stream_options"] = {"include_usage": True}
    if options.running_usage:
        body["stream_options"]["continuous_usage_stats"] = True
    if to_netgain:
        body["netgain"] = {"record": True, "tokens": options.server_tokens}
        if options.speculate is not None:
            body["netgain"]["speculate"] = options.speculate
        if joins_chunks and item.chunks:
            body["netgain"]["chunks"] = item.chunks
    body.update(options.extra_body)
    return Prepared(item, path, msgspec.json.encode(body))
