"""What the engine has verified, seen by its executor."""


class Watching:
    """An executor that notes what is to be verified: position of the last known token, it and the drafts."""

    def __init__(self, inner) -> None:
        self.inner, self.seen = inner, []

    async def execute(self, batch):
        self.seen += [(one.request_id, one.start, one.tokens) for one in batch.segments if one.drafts]
        return await self.inner.execute(batch)

    def close(self) -> None:
        self.inner.close()
