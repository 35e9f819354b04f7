"""What an engine's own figures mean, where their names say something else.

Read in the sources: of vLLM at 6adad08767583f52eb4d2122111af0bf638ed5e6 (v1/metrics/stats.py, v1/core/sched/scheduler.py), of
SGLang at d315eb725044 (observability/, managers/tokenizer_manager.py).
"""

from collections.abc import Mapping

from netgain.measuring.observe.names import Engine

HOW_TO_READ: Mapping[Engine, str] = {
    "vllm": (
        "How vLLM's own figures are to be read: its queue time holds what is waited for KV from elsewhere; time lost to "
        "preemption is inside prefill and decode; first-token and end-to-end times are by another clock than queue, "
        "prefill and decode, so they do not add up; prefix_cache counters leave out requests that go on after preemption; "
        "accepted drafts per position are divided by all drafts, also shorter ones; iteration_tokens shows a prompt that "
        "was computed in parts as one sample; inter_token_latency counts a step of speculation once."
    ),
    "sglang": (
        "How SGLang's own figures are to be read: its acceptance gauges hold the last interval of its log, not the window "
        "that was measured; the acceptance rate of a request is divided by the server-wide draft length, so it is wrong "
        "where that changes; decoding and speculation have spans and no metrics; transfers of KV are in milliseconds and "
        "megabytes, latencies in seconds."
    ),
    "llama.cpp": (
        "How llama.cpp's own figures are to be read: seconds of prompts and of output are the slots' own, without HTTP "
        "and without the wait for a slot."
    ),
}
