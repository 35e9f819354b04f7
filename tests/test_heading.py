"""Every JSON document of the lab says which it is and in which version, in the same two fields."""

import msgspec
import pytest

from netgain.cli.quality import QualityDocument
from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.kv.outcome import KVExperiment
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.verdict.document import VerdictDocument
from netgain.errors import UsageError
from netgain.heading import check_heading, heading_of
from netgain.measuring.measurement.result import Measurement
from netgain.measuring.record.entry import Recording


@pytest.mark.parametrize(
    "document", [Comparison, Outcome, VerdictDocument, Measurement, QualityDocument, Recording, KVExperiment]
)
def test_a_document_begins_with_schema_and_version(document):
    first, second = msgspec.structs.fields(document)[:2]
    assert (first.name, second.name) == ("schema", "version")
    (schema,) = msgspec.inspect.type_info(first.type).values
    assert schema.startswith("netgain.")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"schema": 2}', b'{"schema": "http://json-schema.org"}'])
def test_what_is_no_document_is_none(data):
    assert not heading_of(data).known
    with pytest.raises(UsageError, match=r"f is no verdict: it has no schema 'netgain.verdict'; give one"):
        check_heading(data, "f", "netgain.verdict", 1, "give one")


def test_another_document_is_named():
    with pytest.raises(UsageError, match=r"it is a netgain\.decision"):
        check_heading(b'{"schema": "netgain.decision", "version": 1}', "f", "netgain.verdict", 1, "give one")


def test_another_version_is_refused():
    with pytest.raises(UsageError, match="verdict of version 2; this netgain reads version 1"):
        check_heading(b'{"schema": "netgain.verdict", "version": 2}', "f", "netgain.verdict", 1, "give one")
