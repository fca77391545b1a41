"""Where a server holds its VRAM, from what NVML says; what NVML does not say is unknown."""

from __future__ import annotations

import pytest

from glm53ctl.supervisor.placement import Where, judge

GIB = 1 << 30


def gpu(uuid: str, *pids: int, used: int = 20 * GIB) -> dict:
    return {"uuid": uuid, "processes": [{"pid": pid} for pid in pids], "memory": {"used": used}}


@pytest.mark.parametrize(
    ("gpus", "where"),
    [
        ([gpu("A", 7, 99)], Where.HERE),
        ([gpu("A", 99), gpu("B", 7)], Where.ELSEWHERE),
        ([gpu("A", used=4 << 20)], Where.ELSEWHERE),
        ([gpu("A")], Where.UNKNOWN),  # a container: memory is used, processes are not listed
        ([gpu("A", 4711)], Where.UNKNOWN),  # pids of another namespace
        ([{"uuid": "A", "processes": None, "memory": None}], Where.UNKNOWN),
        ([gpu("B", 99)], Where.UNKNOWN),
        ([], Where.UNKNOWN),
    ],
)
def test_placement(gpus: list, where: Where):
    assert judge({"gpus": gpus}, "A", {7, 8}).where is where


def test_a_driver_that_does_not_answer_is_no_reason_to_stop_a_server():
    hung = {"problem": "hung", "detail": "driver not answering"}
    assert judge(hung, "A", {7}).where is Where.UNKNOWN
