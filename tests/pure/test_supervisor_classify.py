"""Endings and what they are called: proof before guess, and no restart for what it cannot heal."""

from __future__ import annotations

import signal

import pytest

from glm53ctl.errors import ChildExit
from glm53ctl.supervisor.classify import (
    Ending,
    Failure,
    Healing,
    Report,
    classify,
    lost_in_sleep,
    supervisor_lost,
)
from glm53ctl.supervisor.oom import count_oom_kills


def test_out_of_memory_is_said_only_with_proof():
    proven = classify(Ending(-signal.SIGKILL, oom_kills=1, oom_source="memory.events"))
    assert (proven.kind, proven.healing) == ("out of memory", Healing.ONCE)
    assert proven.proof == "memory.events oom_kill rose by 1"
    for kills in (0, None):
        guess = classify(Ending(-signal.SIGKILL, oom_kills=kills))
        assert guess.summary == "killed by SIGKILL, cause not proven"
        assert guess.proof is None


def test_the_kernel_log_is_the_better_proof():
    named = classify(Ending(-signal.SIGKILL, oom_kills=1, oom_source="kernel log"))
    assert named.proof == "the kernel log names it as the victim"
    spared = classify(Ending(-signal.SIGKILL, oom_kills=0, oom_source="kernel log"))
    assert spared.kind == "killed"


def test_an_oom_kill_of_somebody_else_does_not_explain_a_crash():
    assert classify(Ending(-signal.SIGSEGV, oom_kills=1)).kind == "segmentation fault"


@pytest.mark.parametrize(
    ("number", "healing"),
    [
        (signal.SIGILL, Healing.NEVER),
        (signal.SIGBUS, Healing.ONCE),
        (signal.SIGSEGV, Healing.RESTART),
        (signal.SIGABRT, Healing.RESTART),
        (signal.SIGTERM, Healing.RESTART),
        (signal.SIGUSR2, Healing.RESTART),
        (40, Healing.RESTART),
    ],
)
def test_signals(number: int, healing: Healing):
    assert classify(Ending(-number)).healing is healing


@pytest.mark.parametrize("code", list(ChildExit))
def test_every_child_exit_is_classified_as_permanent_or_not(code: ChildExit):
    failure = classify(Ending(code))
    assert (failure.healing is Healing.NEVER) is code.permanent


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [(64, 2), (65, 7), (69, 4), (71, 8), (75, 6), (78, 7), (70, 8), (1, 8), (126, 8), (0, 8)],
)
def test_exit_codes_users_see(code: int, exit_code: int):
    assert classify(Ending(code)).exit_code == exit_code


def test_the_childs_own_words_are_used():
    report = Report("ART-002", "model-00001.safetensors is truncated", "download it again")
    failure = classify(Ending(65, report=report))
    assert (failure.summary, failure.error_id) == (report.message, "ART-002")
    assert failure.hint == "download it again"


def test_cuda_errors_are_recognised_in_the_last_lines():
    failure = classify(Ending(1, tail=("loading", "RuntimeError: CUDA error: unspecified launch")))
    assert failure.kind == "CUDA error"
    assert classify(Ending(1, tail=("CUDA out of memory. Tried",))).healing is Healing.ONCE


def test_an_unknown_crash_quotes_its_last_line():
    failure = classify(Ending(1, tail=("Traceback", "ValueError: bad [brackets]")))
    assert failure.summary == "exited with code 1: ValueError: bad [brackets]"


def test_failures_survive_the_state_file():
    failure = classify(Ending(-signal.SIGKILL, oom_kills=2))
    assert Failure.from_dict(failure.to_dict()) == failure


def test_T068_a_failure_soon_after_waking_is_blamed_on_the_suspend_and_tried_once():
    lost = lost_in_sleep(classify(Ending(70)))
    assert (lost.kind, lost.healing) == ("GPU lost in suspend", Healing.ONCE)
    assert "PreserveVideoMemoryAllocations" in lost.hint
    permanent = classify(Ending(65))
    assert lost_in_sleep(permanent) == permanent


def write(root, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_oom_counter_of_cgroup_v2(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/user.slice/x.scope\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/x.scope/memory.events", "low 0\noom 3\noom_kill 2\n")
    assert count_oom_kills(tmp_path).kills == 2


def test_oom_counter_in_a_container_that_sees_its_cgroup_as_root(tmp_path):
    write(tmp_path, "proc/self/cgroup", "9:memory:/docker/abc\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 5\n")
    found = count_oom_kills(tmp_path)
    assert (found.kills, found.source) == (5, "memory.oom_control")


def test_no_oom_counter_is_not_zero_kills(tmp_path):
    assert count_oom_kills(tmp_path) is None
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    assert count_oom_kills(tmp_path) is None


def test_a_lost_supervisor_is_started_again_by_its_name():
    lost = supervisor_lost(rebooted=False, option=" --instance two")
    assert lost.hint == "glm53ctl restart --instance two starts it with the plan it had"


def test_T027_a_refused_pin_is_no_full_card():
    refused = ("  File arena.py, in cudaHostRegister", "RuntimeError: CUDA error: out of memory")
    found = classify(Ending(1, tail=refused))
    assert (found.kind, found.healing) == ("pin limit", Healing.NEVER)
    assert "WSL" in str(found.hint)
    full = classify(Ending(1, tail=("torch.OutOfMemoryError: CUDA out of memory. Tried ...",)))
    assert full.kind == "GPU out of memory"
    pinned = classify(Ending(1, tail=("cudaHostRegister took 8.1 s", "ValueError: x")))
    assert pinned.kind == "crash"
