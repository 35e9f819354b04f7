"""The two fields with which every JSON document of the lab begins: `schema` says which document it is, `version` how it is laid
out. A reader takes one version of one schema and refuses the rest by name."""

from typing import Any

import msgspec

from netgain.errors import UsageError


class Heading(msgspec.Struct, frozen=True):
    """As far as a file tells; of any type, since a file that is no document may hold anything under these names."""

    schema: Any = None
    version: Any = None

    @property
    def known(self) -> bool:
        """Whether it is a document of netgain, of whatever schema."""
        return isinstance(self.schema, str) and self.schema.startswith("netgain.")


def heading_of(data: bytes | str) -> Heading:
    """That of a JSON object; an empty one where there is none. Raises nothing."""
    try:
        return msgspec.json.decode(data, type=Heading)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Heading()


def check_heading(data: bytes | str, file: object, schema: str, version: int, hint: str) -> None:
    """Raises UsageError when it is another document, or this one in another version. `hint`: what to give instead."""
    found = heading_of(data)
    if found.schema != schema:
        told = f"it is a {found.schema}" if found.known else f"it has no schema {schema!r}"
        raise UsageError(f"{file} is no {schema.removeprefix('netgain.')}: {told}; {hint}")
    if found.version != version:
        raise UsageError(
            f"{file} is a {schema.removeprefix('netgain.')} of version {found.version}; this netgain reads version {version}: "
            "do it again, or use the netgain that wrote it"
        )
