"""A child's whole session ends with it, whatever it forked."""

from __future__ import annotations

import os
import signal
import subprocess

from stage import wait_until

from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan
from glm53ctl.supervisor.child import Child, child_environment
from glm53ctl.supervisor.ready import ReadyPipe
from glm53ctl.supervisor.state import Identity, session_members


def forking_child() -> Child:
    """A leader with two children that ignore SIGTERM, as a stuck worker does."""
    read_fd, write_fd = os.pipe()
    script = "trap '' TERM; sleep 60 & sleep 60 & wait"
    process = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    os.close(write_fd)
    pidfd = os.pidfd_open(process.pid)
    made = Child(1, process, pidfd, ReadyPipe(read_fd), Identity.of(process.pid))
    wait_until(lambda: len(session_members(process.pid)) == 3)
    return made


def test_what_a_child_leaves_behind_is_ended_when_it_is_reaped():
    child = forking_child()
    child.signal(signal.SIGKILL)
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
    assert len(session_members(child.process.pid)) == 2
    assert child.reap() == -signal.SIGKILL
    wait_until(lambda: session_members(child.process.pid) == [])
    child.pipe.close()


def test_signals_to_a_group_that_is_gone_are_calm():
    child = forking_child()
    child.signal_group(signal.SIGKILL)
    child.reap()
    child.signal_group(signal.SIGTERM)
    child.pipe.close()


def test_a_child_sees_the_plans_variables_but_neither_ours_nor_secrets():
    plan = Plan(
        Mode.CPU,
        EngineName.CPU,
        ModelPlan("/m", "m", 256),
        ListenPlan(),
        CpuPlan(1, (0,)),
        child_env=(("OMP_NUM_THREADS", "1"),),
    )
    inherited = {"PATH": "/bin", "GLM53_PORT": "1", "HF_TOKEN": "secret", "OMP_NUM_THREADS": "9"}
    seen = child_environment(inherited, plan)
    assert (seen["PATH"], seen["OMP_NUM_THREADS"], seen["DO_NOT_TRACK"]) == ("/bin", "1", "1")
    assert not {"GLM53_PORT", "HF_TOKEN"} & set(seen)
