"""Every codec over both arithmetics."""

import pytest

from netgain.errors import Unavailable
from netgain.serving.model.kernels.build import find_compiler
from netgain.serving.tiers.codecs import tables
from netgain.serving.tiers.codecs.cachegen import WIDTHS
from netgain.serving.tiers.codecs.compiled import Compiled
from netgain.serving.tiers.codecs.in_numpy import InNumpy
from netgain.serving.tiers.codecs.names import NAMES
from netgain.serving.tiers.codecs.registry import build
from tests.serving.tiers.codecs.kv import form, made


@pytest.fixture(scope="session")
def compiled():
    try:
        find_compiler()
    except Unavailable as error:
        pytest.skip(str(error))
    return Compiled()


@pytest.fixture(scope="session")
def packed_tables():
    samples = [(made(form(), seed), form()) for seed in range(100, 120)]
    return {name: tables.pack(tables.make(samples, width)) for name, width in WIDTHS.items()}


@pytest.fixture(scope="session")
def in_numpy(packed_tables):
    return {name: build(name, InNumpy(), packed_tables.get(name)) for name in NAMES}


@pytest.fixture(scope="session")
def in_c(packed_tables, compiled):
    return {name: build(name, compiled, packed_tables.get(name)) for name in NAMES}
