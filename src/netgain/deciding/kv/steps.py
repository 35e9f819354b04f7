"""The five steps of the experiment: which servers there are, who is asked in which step, and what is set against what."""

import msgspec

OFF, DEVICE, DRAM, DISK, LOAD = "off", "device", "dram", "disk", "load"
SERVERS = (DRAM, OFF, DEVICE, DISK, LOAD)  # in the order of starting: the first one measures what a step costs
TIERED = (DRAM, DISK, LOAD)


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """One side in a step: what it is called there, and which server it is."""

    name: str
    server: str
    title: str


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a step: the candidate's time to first token beside the baseline's. `says` is what the sentence about it
    begins with."""

    baseline: str
    candidate: str
    says: str


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`choices`: the roles between which the policy chose, and the policy; its regret is measured where they are named."""

    name: str
    title: str
    does: str
    roles: tuple[Role, ...]
    claims: tuple[Against, ...]
    choices: tuple[str, ...] = ()
    policy: str | None = None
    warm_from: str | None = None  # the tier that prompts are to come from

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)


_NO_CACHE = Role(name="off", server=OFF, title="cache off")
_WITH_DRAM = Role(name="dram", server=DRAM, title="DRAM tier, by the policy")
_WITH_DISK = Role(name="disk", server=DISK, title="disk tier, by the policy")
_RECOMPUTE = Role(name="recompute", server=DEVICE, title="no tier: recompute")
_ALWAYS = Role(name="load", server=LOAD, title="DRAM tier: always load")

STEPS = (
    StepPlan(
        name="off",
        title="Cache off, two requests",
        does="Each prompt is asked twice in a row of a server that keeps nothing: what the later steps are set against, and how "
        "far two equal requests differ here.",
        roles=(
            Role(name="first", server=OFF, title="first request"),
            Role(name="second", server=OFF, title="second request"),
        ),
        claims=(
            Against(
                baseline="first", candidate="second", says="With the cache off, the second request against the first"
            ),
        ),
    ),
    StepPlan(
        name="cold",
        title="On, cold",
        does="Prompts that no server has seen: what looking up and storing cost where nothing is found.",
        roles=(_NO_CACHE, _WITH_DRAM, _WITH_DISK),
        claims=(
            Against(baseline="off", candidate="dram", says="With nothing to find, a DRAM tier against cache off"),
            Against(baseline="off", candidate="disk", says="With nothing to find, a disk tier against cache off"),
        ),
    ),
    StepPlan(
        name="warm-dram",
        title="On, warm from DRAM",
        does="The same prompts again, after the others have pushed them out of the device.",
        roles=(_NO_CACHE, _WITH_DRAM),
        claims=(Against(baseline="off", candidate="dram", says="Warm from DRAM against cache off"),),
        warm_from=DRAM,
    ),
    StepPlan(
        name="warm-disk",
        title="On, warm from disk",
        does="The same prompts again, asked of a process that was started after the one that stored them had ended.",
        roles=(_NO_CACHE, _WITH_DISK),
        claims=(Against(baseline="off", candidate="disk", says="Warm from disk against cache off"),),
        warm_from=DISK,
    ),
    StepPlan(
        name="mixed",
        title="Mixed prefixes, low hit rate",
        does="Prompts of several lengths, of which one in eight begins like an earlier one: where a cache earns little, it may "
        "not cost much either.",
        roles=(_RECOMPUTE, _ALWAYS, _WITH_DRAM),
        claims=(
            Against(
                baseline="recompute",
                candidate="dram",
                says="At a low hit rate, a DRAM tier with the policy against no tier",
            ),
        ),
        choices=("recompute", "load"),
        policy="dram",
    ),
    StepPlan(
        name="saturated",
        title="Device cache saturated: recompute against load",
        does="More prompts come back than the device has room for: each is computed again, or loaded, or goes by the policy.",
        roles=(_RECOMPUTE, _ALWAYS, _WITH_DRAM),
        claims=(
            Against(
                baseline="recompute", candidate="load", says="With the device saturated, loading against recomputing"
            ),
            Against(
                baseline="recompute", candidate="dram", says="With the device saturated, the policy against recomputing"
            ),
        ),
        choices=("recompute", "load"),
        policy="dram",
        warm_from=DRAM,
    ),
)
CLAIMS = sum(len(step.claims) for step in STEPS)
