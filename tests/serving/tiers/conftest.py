"""Servers that tests of tiers share."""

from collections.abc import Iterator

import pytest

from tests.serving.tiers.servers import Server, s3, valkey

BUCKET = "netgain"


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[Server]:
    """A Valkey server for tests that leave it running."""
    with valkey() as server:
        yield server


@pytest.fixture(scope="session")
def shared_s3() -> Iterator[Server]:
    """An S3 server with the bucket `netgain` for tests that leave it running."""
    with s3(BUCKET) as server:
        yield server
