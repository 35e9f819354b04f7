"""What is known of the system before anything is changed: the ground on which techniques are proposed and predicted."""

import msgspec

from netgain.cost.step_cost import StepCost
from netgain.deciding.technique.chunks_told import BlendingTold, ChunksSeen
from netgain.deciding.technique.codec_asked import CodecAsked, KVMoved
from netgain.deciding.technique.codecs_told import CodecsTold
from netgain.deciding.technique.decomposition import Decomposition
from netgain.deciding.technique.drafter import Drafter
from netgain.deciding.technique.prompt_cost import PromptCost
from netgain.deciding.technique.tier_asked import TierAsked
from netgain.deciding.technique.transfer_rates import DiskRates
from netgain.measuring.client.record import ClientRecord


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One measured baseline. `records` are its successful requests with the server's account of them.

    `synthetic_text`: the prompts are made up, so what a text says (and its answer) may not be judged.
    `step_cost` is the engine's measured cost of a step by what it holds; None with the reason in `step_cost_missing`.
    `prompt_cost`: what computing prompts costs, where that was measured apart from steps that decode.
    `kv_dtype`: in which type the server keeps KV, in its own words; None where it does not tell. `kv_tokens` fit into its KV
    cache, each of `kv_token_bytes`. `drafter`: the draft that the user has, None where none was named.
    `starts`: under which start of the servers a prompt will be tried, by its id; what was left behind under another is gone
    (empty: under one, all of them). `kv_codecs`: for stored KV, those in use and what was measured of them on this model.
    `blending`: the same of joining chunks, and `chunks` those of the prompts, by item.
    `tier` and `codec`: which the user wants tried (a codec: None, any). `kv_moved`: what an engine that tells it of no single
    request loaded from beyond its device; None where it does not tell. `disk_rates`: of the folder of a tier on disk.
    """

    engine: str
    engine_version: str
    model: str
    workload: str
    concurrency: int
    decomposition: Decomposition
    records: tuple[ClientRecord, ...]
    synthetic_text: bool = False
    step_cost: StepCost | None = None
    step_cost_missing: str | None = None
    kv_dtype: str | None = None
    step_cost_basis: str = "measured by the engine"
    drafter: Drafter | None = None
    kv_tokens: int | None = None
    kv_token_bytes: int | None = None
    starts: dict[str, int] = {}
    kv_codecs: CodecsTold = CodecsTold()
    blending: BlendingTold = BlendingTold()
    chunks: dict[str, ChunksSeen] = {}
    tier: TierAsked = TierAsked()
    codec: CodecAsked | None = None
    kv_moved: KVMoved | None = None
    disk_rates: DiskRates | None = None
    prompt_cost: PromptCost | None = None

    @property
    def computing(self) -> PromptCost:
        """Of prompts: as measured of them, else by steps."""
        return self.prompt_cost or PromptCost(
            cost=self.step_cost, missing=self.step_cost_missing, basis=self.step_cost_basis
        )
