"""Ports of servers that are started here."""

import socket
from pathlib import Path

from netgain.deciding.experiment.arms import port
from netgain.deciding.experiment.arms.port import free_port

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_free_port_can_be_listened_on_and_is_another_each_time():
    found = {free_port() for _ in range(8)}
    assert len(found) > 4
    for number in found:
        with socket.create_server(("127.0.0.1", number)):
            pass


def test_a_free_port_is_none_that_an_outgoing_connection_may_take_before_the_server_listens(monkeypatch):
    if RANGE.exists():
        assert port._given_unasked() == int(RANGE.read_text().split()[0])
    monkeypatch.setattr(port, "_given_unasked", lambda: 12_000)
    assert all(port._FIRST <= free_port() < 12_000 for _ in range(50))


def test_where_the_system_does_not_tell_any_free_port_is_found(monkeypatch):
    monkeypatch.setattr(port, "_given_unasked", lambda: 0)
    with socket.create_server(("127.0.0.1", free_port())):
        pass
