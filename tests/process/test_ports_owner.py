"""Ports of this machine: free, taken by whom, and addresses that are not ours."""

from __future__ import annotations

import os
import socket

import pytest
from stage import free_port

from glm53ctl import ports
from glm53ctl.errors import Conflict, UsageError
from glm53ctl.plan import ListenPlan


def test_a_free_port_has_no_owner():
    port = free_port()
    assert ports.owner_of(port) is None
    ports.check_address(ListenPlan("127.0.0.1", port))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_dual_stack_holder_is_seen_from_ipv4():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(Conflict) as error:
            ports.check_address(ListenPlan("127.0.0.1", port))
    assert f"[::]:{port} is held by pid {os.getpid()}" in error.value.message


def test_connections_left_behind_by_the_last_server_do_not_block():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the server closes first, so TIME_WAIT stays on its side
        client.close()
    ports.check_address(ListenPlan("127.0.0.1", port))


@pytest.mark.parametrize("host", ["192.0.2.33", "no such host"])
def test_addresses_that_are_not_ours(host: str):
    with pytest.raises(UsageError) as error:
        ports.check_address(ListenPlan(host, 8080))
    assert error.value.error_id == "NET-005"


def test_owners_in_words():
    assert str(ports.Owner("127.0.0.1:80")) == "127.0.0.1:80 is held by a process of another user"
    owner = ports.Owner("127.0.0.1:80", 7, "nginx: master", "nginx.service")
    assert str(owner) == "127.0.0.1:80 is held by pid 7 of nginx.service: nginx: master"


def test_a_long_command_is_cut_visibly_and_our_server_is_named_without_it(monkeypatch):
    import psutil

    folder = "/home/somebody/.local/state/with a long name"
    ours = ["/opt/python", "-m", "glm53_server", "--plan", f"{folder}/second/plan.json"]
    for words, told in (
        (["/usr/bin/java", "-jar", "x" * 100], f"/usr/bin/java -jar {'x' * 60}…"),
        (ours, "the server of instance 'second'"),
    ):
        monkeypatch.setattr(psutil.Process, "cmdline", lambda _, words=words: words)
        with socket.create_server(("127.0.0.1", 0)) as holder:
            message = ports.taken(ListenPlan("127.0.0.1", holder.getsockname()[1])).message
        assert message.endswith(told)
        assert "--plan" not in message
