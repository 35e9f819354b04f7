"""Settings of KV beyond the device, and of KV that is computed apart and joined."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from netgain.cost.loading import LAYER_GROUPS
from netgain.serving.runtime.settings import Settings
from netgain.serving.runtime.tier_specs import parse_tier
from netgain.serving.tiers.codecs.names import unknown


class KVTierSettings(Settings):
    """KV beyond the device, stored off the step path and loaded where that is sooner than computing it again."""

    tiers: tuple[str, ...] = Field(
        default=(),
        description="fast to slow: dram:SIZE, shm:NAME:SIZE, disk:FOLDER:SIZE, valkey://HOST:PORT/DB, s3://BUCKET/PREFIX "
        "(docs/kv-tiers.md)",
    )
    policy: Literal["measured", "always", "never"] = Field(
        default="measured", description="load what is predicted to be sooner, whatever is found, or nothing"
    )
    codec: tuple[str, ...] = Field(
        default=(),
        description="how KV may be coded in tiers: zstd (every bit comes back), or what passed its gate on this model of the "
        "lossy fp8, int8, int4, cachegen-fine, cachegen, cachegen-coarse (docs/kv-compression.md); of several the soonest; "
        "a tier may have its own (?codec=zstd)",
    )
    codec_when: Literal["sooner", "always"] = Field(
        default="sooner",
        description="code KV only where encode, move and decode beat moving it raw, or always, to save room (?codec_when=)",
    )
    codec_forced: bool = Field(
        default=False,
        description="use lossy codecs that did not pass their quality gate on this model, or were not measured",
    )
    vault: str | None = Field(
        default=None,
        min_length=1,
        description="file with a key for every tenant, made where there is none: KV is sealed before it leaves the engine",
    )
    retention_s: float | None = Field(
        default=None,
        gt=0,
        description="KV that was computed longer ago is never used, on the device or beyond it; by default no age is too old",
    )
    pin_s: float = Field(
        default=3600.0,
        ge=0,
        description="requests may keep their KV from eviction for so long (netgain.pin_s); 0: not at all",
    )
    lookup_s: float = Field(default=0.5, gt=0, le=60, description="longest wait of a request for where its KV is")
    load_s: float = Field(default=10.0, gt=0, le=600, description="longest wait of a request for its KV")
    timeout_s: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="longest exchange with a tier, of up to 16 objects, beside what its bytes take at 8 MB/s",
    )
    ahead_bytes: int = Field(
        default=256 << 20, ge=0, description="fetched at most for requests that are still in the queue"
    )
    layer_groups: int = Field(
        default=LAYER_GROUPS,
        ge=1,
        le=16,
        description="the end of a prefix may come in so many groups of layers while the suffix is computed, where the link is "
        "quick enough for that to be hidden; 1: never",
    )
    queue_bytes: int = Field(
        default=256 << 20, ge=1 << 20, description="waiting at most to be stored in a tier; more is not stored"
    )
    copy_bytes: int = Field(
        default=16 << 20,
        ge=1,
        description="copied at most (but a block) for tiers between two steps; the rest follows behind the next ones",
    )
    close_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="so long the engine's end waits for what is still to be stored, also in tiers that are written back",
    )

    @field_validator("tiers", "codec", mode="before")
    @classmethod
    def _one_is_a_list_too(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @field_validator("codec")
    @classmethod
    def _codecs_are_known(cls, codecs: tuple[str, ...]) -> tuple[str, ...]:
        for codec in codecs:
            if said := unknown(codec):
                raise ValueError(said)
        return codecs

    @field_validator("tiers")
    @classmethod
    def _tiers_can_be_read(cls, tiers: tuple[str, ...]) -> tuple[str, ...]:
        for tier in tiers:
            parse_tier(tier)
        return tiers


class BlendingSettings(Settings):
    """Chunks of prompts whose KV is computed once, apart, and joined. Lossy below ratio 1."""

    enabled: bool = Field(default=False, description="requests may mark chunks of their prompts")
    ratio: float | Literal["calibrated"] = Field(
        default="calibrated",
        description="share of chunks' tokens computed anew, 0 to 1; calibrated: as `netgain cache blend` found, else 1 (exact)",
    )
    first: int | None = Field(
        default=None,
        ge=1,
        description="compute this many first tokens of each chunk anew, instead of a share (LegoLink)",
    )
    memory_bytes: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="of chunks in memory, ready to be joined; beyond it in engine.kv.tiers",
    )

    @field_validator("ratio")
    @classmethod
    def _ratio_is_a_share(cls, ratio: float | str) -> float | str:
        if not isinstance(ratio, str) and not 0 <= ratio <= 1:
            raise ValueError(f"the ratio is a share from 0 to 1, not {ratio}")
        return ratio

    @model_validator(mode="after")
    def _first_or_ratio(self) -> Self:
        if self.first is not None and self.ratio != "calibrated":
            raise ValueError("first and ratio both say what of chunks is computed anew; give one of them")
        return self
