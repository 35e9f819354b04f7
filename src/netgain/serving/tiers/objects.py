"""Object storage (S3 and what speaks like it) as a medium, through obstore. What is kept for how long is the bucket's own
lifecycle rule; nothing here evicts (see bounded.py for a capacity beside that)."""

import asyncio
import datetime
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from netgain.errors import Unavailable, UsageError
from netgain.serving.tiers.bounded import Listed
from netgain.serving.tiers.medium import Data, Fault, FaultKind, GivenUp, Range, Still, Usage
from netgain.serving.tiers.object import HEAD_BYTES
from netgain.wording import install_command

try:
    import obstore
    from obstore import exceptions
    from obstore.store import ObjectStore, from_url
except ModuleNotFoundError as error:
    raise Unavailable(f"KV in object storage needs a client: {install_command('objects')}") from error

K = TypeVar("K")
T = TypeVar("T")
_SUFFIX = ".kv"
_OBJECT = re.compile(r"[0-9a-f]{64}\.kv")
_PAGE = 1000  # names in one answer of a server
# obstore's threads let go of Python's objects a moment after they gave their answer; if Python ends meanwhile, one that then
# asks for its lock brings the process down (SIGABRT).
_LET_GO_S = 0.1


class ObjectsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`prefix` is a folder in the bucket. `connections`: how many objects are asked for at once, `questions` how many are asked
    about, apart from those. `settings`: what obstore's
    stores take (endpoint, region, keys); without them the environment's AWS_* variables count."""

    prefix: str = "netgain-kv"
    connections: int = 16
    questions: int = 64
    settings: dict[str, str] = {}
    allow_http: bool = False


class ObjectsMedium(Still):
    """Objects are written only where there are none (If-None-Match), so two writers of a key cannot mix."""

    outlives = True
    tells_use = False

    def __init__(self, url: str, options: ObjectsOptions | None = None) -> None:
        self._options = options or ObjectsOptions()
        self._bodies = asyncio.Semaphore(self._options.connections)
        self._questions = asyncio.Semaphore(self._options.questions)
        settings: dict[str, Any] = {
            "config": self._options.settings or None,
            "client_options": {"allow_http": self._options.allow_http},
            "retry_config": {"max_retries": 0},
        }
        try:
            self._store: ObjectStore = from_url(url, **settings)
        except (exceptions.BaseError, ValueError) as error:
            raise UsageError(f"{url!r} is no bucket: {error}. Write s3://BUCKET") from error

    async def read(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self._each(keys, self._read, self._bodies)

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self._each([Range(key, 0, HEAD_BYTES) for key in keys], self._range, self._questions)

    async def ranges(self, wanted: Sequence[Range]) -> list[Data | None]:
        return await self._each(wanted, self._range, self._bodies)

    async def write(self, key: bytes, data: Data) -> None:
        try:
            await self._call(obstore.put_async(self._store, self._name(key), data, mode="create"))
        except exceptions.AlreadyExistsError:
            return
        except FileNotFoundError as error:  # the bucket, not the object
            raise Fault(FaultKind.UNREACHABLE, _first_line(error)) from error

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        return await self._each(keys, self._has, self._questions)

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        return 0

    async def remove(self, keys: Sequence[bytes]) -> int:
        there = [key for key, found in zip(keys, await self.has(keys), strict=True) if found]
        if there:
            await self._call(obstore.delete_async(self._store, [self._name(key) for key in there]))
        return len(there)

    async def pages(self) -> AsyncIterator[list[bytes]]:
        async for page in self.survey():
            yield [one.key for one in page]

    async def survey(self) -> AsyncIterator[list[Listed]]:
        pages = obstore.list(self._store, self._options.prefix, chunk_size=_PAGE)
        while True:
            try:
                page = await self._call(anext(pages))
            except StopAsyncIteration:
                return
            now = datetime.datetime.now(datetime.UTC)
            named = [(entry["path"].rpartition("/")[2], entry) for entry in page]
            yield [
                Listed(
                    bytes.fromhex(name[:64]), entry["size"], max(0.0, (now - entry["last_modified"]).total_seconds())
                )
                for name, entry in named
                if _OBJECT.fullmatch(name)
            ]

    async def ping(self) -> None:
        await self._has(bytes(32))

    def on_eviction(self, given_up: GivenUp) -> bool:
        return False

    def usage(self) -> Usage:
        return Usage()

    async def close(self) -> None:
        await asyncio.sleep(_LET_GO_S)

    def _name(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._options.prefix}/{name[:2]}/{name}{_SUFFIX}"

    async def _read(self, key: bytes) -> Data | None:
        async def body() -> Data:
            found = await obstore.get_async(self._store, self._name(key))
            return memoryview(await found.bytes_async())

        try:
            return await self._call(body())
        except FileNotFoundError:
            return None

    async def _range(self, wanted: Range) -> Data | None:
        options: obstore.GetOptions = {"range": (wanted.start, wanted.end)}

        async def body() -> Data:
            found = await obstore.get_async(self._store, self._name(wanted.key), options=options)
            return memoryview(await found.bytes_async())

        try:
            return await self._call(body())
        except FileNotFoundError:
            return None

    async def _has(self, key: bytes) -> bool:
        try:
            await self._call(obstore.head_async(self._store, self._name(key)))
        except FileNotFoundError:
            return False
        return True

    async def _each(self, wanted: Sequence[K], ask: Callable[[K], Awaitable[T]], places: asyncio.Semaphore) -> list[T]:
        """All answers; the first failure when there is one, once all calls have ended."""

        async def one(what: K) -> T:
            async with places:
                return await ask(what)

        answers = await asyncio.gather(*map(one, wanted), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return cast(list[T], answers)

    async def _call(self, call: "Awaitable[T]") -> T:
        try:
            return await call
        except (FileNotFoundError, exceptions.AlreadyExistsError):
            raise
        except exceptions.BaseError as error:
            raise Fault(FaultKind.UNREACHABLE, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    """The libraries' texts have a page of detail behind it."""
    return str(error).partition("\n")[0][:300]
