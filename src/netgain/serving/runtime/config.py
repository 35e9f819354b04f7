"""The configuration tree of a server: one frozen pydantic model per concern. Files, `--set`, experiments and docs all read it."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from netgain.serving.runtime.kv_settings import BlendingSettings, KVTierSettings
from netgain.serving.runtime.settings import ActivationsType, KVType, Settings, WeightType


class ModelSettings(Settings):
    """Which weights are served and how they are computed."""

    source: str = Field(
        default="default", min_length=1, description="'default', a folder, a .gguf file or a Hugging Face id"
    )
    name: str | None = Field(default=None, min_length=1, description="name in the API; by default the model's own")
    dtype: WeightType = Field(
        default="auto",
        description="how weights are kept; auto keeps the checkpoint's (quantised stay so), int8 and int4 round any",
    )
    kv_dtype: KVType = Field(
        default="auto",
        description="how keys and values are stored; auto is fp32 with dtype fp32, else bf16; int8 halves bf16's memory",
    )
    activations: ActivationsType = Field(
        default="auto",
        description="what activations are rounded to in products; auto is int8 with int8 and 4-bit weights, else fp32",
    )
    kernels: Literal["auto", "compiled", "torch"] = Field(
        default="auto", description="auto takes the compiled ones where they can be built, else the slow reference"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU if torch sees one")
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="compute threads, at most and by default one per available core"
    )


class CacheSettings(Settings):
    """The paged KV memory."""

    block_tokens: Literal[8, 16, 32, 64, 128] = Field(
        default=16, description="tokens of one KV block, the unit of reuse"
    )
    kv_tokens: int | None = Field(
        default=None, ge=1, description="capacity in tokens; by default chosen from memory and limits"
    )
    prefix_caching: bool = Field(
        default=True, description="reuse the KV of a prompt's beginning that was computed before"
    )


class SchedulerSettings(Settings):
    """What one step may hold and how much may wait."""

    max_batch_tokens: int = Field(
        default=512, ge=1, description="tokens computed in one step, prefill and decode together"
    )
    max_running: int = Field(default=32, ge=1, description="requests that hold KV at the same time")
    max_waiting: int = Field(default=256, ge=1, description="queued requests; one more is refused (429)")
    max_model_len: int | None = Field(
        default=None, ge=2, description="prompt and output tokens, at most and by default the model's limit"
    )

    @model_validator(mode="after")
    def _budget_covers_running(self) -> Self:
        if self.max_batch_tokens < self.max_running:
            raise ValueError(
                f"max_batch_tokens ({self.max_batch_tokens}) is less than max_running ({self.max_running}), so running "
                "requests could not all decode in one step; raise the first or lower the second"
            )
        return self


class SuffixSettings(Settings):
    """Suffix decoding."""

    factor: float = Field(default=1.0, gt=0, le=64, description="drafts per token that the match is long")
    min_probability: float = Field(
        default=0.1, gt=0, le=1, description="a draft ends where its continuation followed less often than this"
    )
    depth: int = Field(default=32, ge=2, le=256, description="longest match looked for, in tokens")
    memory_bytes: int = Field(
        default=64 << 20, ge=1 << 20, description="of all indexes; the oldest finished answers make room"
    )
    shared: bool = Field(default=True, description="finished answers serve later requests of the same cache salt")


class SpeculationSettings(Settings):
    """Drafting. `coupled` keeps the output token-identical, `rejection` and `block` keep its distribution."""

    method: Literal["none", "ngram", "suffix", "draft", "mtp", "synthetic"] = Field(
        default="none", description="who drafts; mtp is the module that a checkpoint carries for it"
    )
    draft: str | None = Field(
        default=None,
        min_length=1,
        description="under method draft: a trained draft, or any model of the vocabulary",
    )
    draft_dtype: WeightType = Field(
        default="auto",
        description="how the weights of what drafts are kept; auto is int8 for trained heads, else as stored",
    )
    k: int = Field(default=4, ge=1, le=64, description="drafts per verify step, at most")
    lookup_min: int = Field(default=2, ge=1, description="ngram: shortest suffix looked up in the request's own tokens")
    lookup_max: int = Field(default=4, ge=1, description="ngram: longest suffix looked up")
    suffix: SuffixSettings = SuffixSettings()
    control: Literal["fixed", "by-load", "goodput"] = Field(
        default="fixed",
        description="how many drafts: always k; by k_by_load; or what commits most per second at the measured step cost",
    )
    k_by_load: dict[int, int] = Field(
        default={1: 4, 8: 2, 16: 0},
        description="by-load: from so many decoding requests on, at most so many drafts for each",
    )
    verifier: Literal["coupled", "rejection", "block"] = Field(
        default="coupled", description="coupled keeps every token, rejection and block the distribution"
    )

    synthetic_rates: tuple[float, ...] | None = Field(
        default=None,
        description="synthetic: survival by position, e.g. [0.8, 0.6]; text that is not the model's, to map what would pay",
    )

    @model_validator(mode="after")
    def _synthetic_is_meant(self) -> Self:
        if (self.method == "synthetic") == (self.synthetic_rates is None):
            raise ValueError(
                "synthetic_rates, and they alone, come with method synthetic: its text is not the model's; "
                f"the method is {self.method}, the rates are {self.synthetic_rates}"
            )
        rates = self.synthetic_rates or (1.0,)
        if not all(0 <= rate <= before for before, rate in zip((1.0, *rates), rates, strict=False)):
            raise ValueError(f"synthetic_rates fall from at most 1 to at least 0; got {list(rates)}")
        if self.method == "synthetic" and self.verifier != "coupled":
            raise ValueError(f"method synthetic has a verifier of its own, so verifier {self.verifier} has no use")
        return self

    @field_validator("k_by_load")
    @classmethod
    def _table_maps_requests_to_drafts(cls, table: dict[int, int]) -> dict[int, int]:
        if not table or min(table) < 1 or not 0 <= min(table.values()) <= max(table.values()) <= 64:
            raise ValueError("give requests (1 or more) and their drafts (0 to 64), for example {1: 4, 8: 2, 16: 0}")
        return table

    @model_validator(mode="after")
    def _lookup_is_a_range(self) -> Self:
        if self.lookup_min > self.lookup_max:
            raise ValueError(f"lookup_min ({self.lookup_min}) is greater than lookup_max ({self.lookup_max})")
        return self

    @model_validator(mode="after")
    def _draft_is_used(self) -> Self:
        if (self.method == "draft") == (self.draft is None):
            raise ValueError(
                "method draft needs to know who drafts: give --draft, or set engine.speculation.draft"
                if self.draft is None
                else f"draft ({self.draft}) is used by method draft only, and the method is {self.method}"
            )
        return self


class StepCostSettings(Settings):
    """The measured cost of a step, by what it holds: kept in the cache, measured again while the engine is idle."""

    refresh: Literal["idle", "never"] = Field(
        default="idle",
        description="idle measures while no request runs, where no curve is kept, it is old or steps disagree with it",
    )
    idle_s: float = Field(default=5.0, ge=0, description="idle for this long before anything is measured")
    max_age_days: float = Field(default=7.0, gt=0, le=3650, description="an older curve is measured again")
    margin: float = Field(
        default=0.25, gt=0, le=10, description="so far off may the median of recent steps be, as a share of the curve"
    )


class EngineConfig(Settings):
    """Everything that `build_engine` needs; the same tree builds the simulated form."""

    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    step_cost: StepCostSettings = StepCostSettings()
    kv: KVTierSettings = KVTierSettings()

    @model_validator(mode="after")
    def _tiers_need_keys(self) -> Self:
        if self.kv.tiers and not self.cache.prefix_caching:
            raise ValueError("kv.tiers find KV by its prefix: they need cache.prefix_caching")
        return self

    blending: BlendingSettings = BlendingSettings()


class LimitSettings(Settings):
    """What one HTTP request may ask for."""

    max_body_bytes: int = Field(default=4 << 20, ge=1024, description="a larger request body is refused (413)")
    max_tokens: int | None = Field(
        default=None, ge=1, description="cap on max_tokens; by default the model's length alone"
    )
    max_choices: int = Field(default=16, ge=1, le=128, description="largest n")
    max_prompts: int = Field(default=64, ge=1, le=1024, description="prompts in one /v1/completions request")


class ApiSettings(Settings):
    """How generated text is read for chat clients."""

    tool_parser: Literal["auto", "hermes", "llama3_json", "mistral", "none"] = Field(
        default="auto", description="how the model writes tool calls; auto goes by its template and vocabulary"
    )
    reasoning_parser: Literal["auto", "think", "mistral", "none"] = Field(
        default="auto", description="how the model marks its reasoning; auto goes by its template and vocabulary"
    )


class FleetSettings(Settings):
    """How engine processes are watched and replaced."""

    start_timeout_s: float = Field(default=600.0, gt=0, description="loading longer than this counts as a failure")
    heartbeat_s: float = Field(default=0.5, gt=0, le=10, description="an engine process reports at least this often")
    hang_timeout_s: float = Field(
        default=10.0, gt=0, description="silence longer than this kills and restarts the engine process"
    )
    step_timeout_s: float = Field(
        default=120.0, gt=0, description="one step longer than this kills and restarts the engine process"
    )
    restart_backoff_s: float = Field(
        default=0.5, ge=0, description="wait before the first restart; doubles per failure in a row"
    )
    restart_backoff_max_s: float = Field(default=30.0, ge=0, description="longest wait before a restart")
    max_failures: int = Field(
        default=10,
        ge=1,
        description="after as many failed starts or short lives in a row the server ends (exit code 1)",
    )
    stop_timeout_s: float = Field(
        default=5.0, gt=0, description="an engine process that has not ended by then is killed"
    )

    @model_validator(mode="after")
    def _heartbeats_come_in_time(self) -> Self:
        if self.heartbeat_s >= self.hang_timeout_s:
            raise ValueError(
                f"heartbeat_s ({self.heartbeat_s}) is not below hang_timeout_s ({self.hang_timeout_s}), so every engine "
                "process would be taken for hung; lower the first or raise the second"
            )
        return self


class TracingSettings(Settings):
    """Where traces go. Headers and certificates for the collector are read from OpenTelemetry's environment variables."""

    endpoint: str | None = Field(
        default=None, min_length=1, description="URL of an OpenTelemetry collector; without it nothing is traced"
    )
    protocol: Literal["http/protobuf", "grpc"] = Field(default="http/protobuf", description="form of OTLP")
    sample_ratio: float = Field(
        default=1.0, ge=0, le=1, description="share of the requests traced whose caller has not decided (traceparent)"
    )
    service_name: str = Field(default="netgain", min_length=1, description="service.name of the spans")
    queue: int = Field(
        default=2048, ge=1, le=1 << 20, description="ended requests that wait for the collector; more are dropped"
    )
    timeout_s: float = Field(default=5.0, gt=0, le=120, description="one delivery, retries included, ends after this")
    flush_s: float = Field(default=2.0, ge=0, le=60, description="longest wait for the collector when the server stops")


class AuthSettings(Settings):
    """Who may use the server."""

    keys_file: str | None = Field(
        default=None, min_length=1, description="file of API keys (`netgain keys`); by default nobody is asked for one"
    )
    metrics: Literal["open", "operator"] = Field(
        default="open", description="who may read /metrics where there are keys: everybody, or operators' keys"
    )


class ServerSettings(Settings):
    """How long the server waits for clients, how many it takes, and how it ends."""

    drain_timeout_s: float = Field(
        default=30.0, ge=0, description="after a signal to end, running requests have this long to finish"
    )
    head_timeout_s: float = Field(
        default=20.0, gt=0, description="a connection that has not sent a request's head by then is closed"
    )
    body_timeout_s: float = Field(
        default=60.0, gt=0, description="a request whose body has not come by then is refused (408)"
    )
    write_timeout_s: float = Field(
        default=60.0, gt=0, description="a client that takes nothing of what it is sent for this long is disconnected"
    )
    idle_timeout_s: float = Field(
        default=75.0, gt=0, description="a connection without a request is closed after this time"
    )
    max_head_bytes: int = Field(default=64 << 10, ge=1024, description="a larger request head is refused (431)")
    max_connections: int = Field(default=1024, ge=1, description="one more connection gets 503 and is closed")


class ServerConfig(Settings):
    """A served engine: `netgain serve --print-config` shows it whole."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes a free one")
    records: str | None = Field(
        default=None, min_length=1, description="JSONL file that request records are appended to"
    )
    send_buffer_bytes: int | None = Field(
        default=None,
        ge=1024,
        le=1 << 30,
        description="kernel buffer per connection; what it holds counts as accepted by the client",
    )
    auth: AuthSettings = AuthSettings()
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    api: ApiSettings = ApiSettings()
    fleet: FleetSettings = FleetSettings()
    tracing: TracingSettings = TracingSettings()
    engine: EngineConfig = EngineConfig()
