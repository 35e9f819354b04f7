"""The server of a fixed pace as an arm that a comparison starts itself."""

import shlex
import sys

from netgain.deciding.experiment.arms.described import Described
from netgain.deciding.experiment.arms.starting import Starting
from tests.deciding.compare import paced_server


def paced_arm(**options: object) -> Described:
    """Such a server as an arm to start, in vLLM's place."""
    words = [sys.executable, paced_server.__file__, "--port", "{port}", "--model", "{model}"]
    words += paced_server.options_of(options)
    command = " ".join(word if word in ("{port}", "{model}") else shlex.quote(word) for word in words)
    return Described(engine="vllm", model="m", starting=Starting(command=command))
