"""When a second `up` agrees with a running instance, and how it names the difference."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from glm53ctl import profile, starting
from glm53ctl.asked_model import asked_model
from glm53ctl.env import Environ
from glm53ctl.errors import ArtifactError, Conflict, NoFit, StartFailed, UsageError
from glm53ctl.plan import Choice, CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan
from glm53ctl.supervisor.classify import Failure
from glm53ctl.supervisor.state import Instance

PLAN = Plan(
    Mode.FAST, EngineName.EXL3, ModelPlan("/m", "glm", 32768), ListenPlan(), CpuPlan(8, (0, 1))
)


@pytest.fixture
def running(tmp_path: Path) -> Instance:
    instance = Instance.locate("t", folder=tmp_path / "t", runtime_dir=tmp_path)
    instance.create()
    instance.plan_path.write_text(PLAN.to_json())
    instance.wishes_path.write_text(json.dumps({"mode": "auto"}))
    return instance


def never() -> Plan:
    raise AssertionError("no plan is needed to see that the wishes are the same")


def no_fit() -> Plan:
    raise NoFit("not even without the running server")


def test_equal_wishes_agree_without_a_plan(running: Instance):
    starting.agree(running, {"mode": "auto"}, never)


@pytest.mark.parametrize("text", ["[]", "3", "{", "[" * 100_000, '{"mode": "fast"}', ""])
def test_damaged_wishes_are_none(running: Instance, text: str):
    running.wishes_path.write_text(text)
    starting.agree(running, {"mode": "auto"}, lambda: PLAN)
    assert asked_model(running) == "/m"


@pytest.mark.parametrize("raw", [b"[]", b"{}", b"", b"\xff\xfe", b"[" * 100_000, None])
def test_a_running_instance_without_a_plan_is_said_with_the_way_out(
    running: Instance, raw: bytes | None
):
    running.plan_path.unlink() if raw is None else running.plan_path.write_bytes(raw)
    with pytest.raises(Conflict) as error:
        starting.agree(running, {}, never)
    assert "'t' is running, but " in error.value.message
    assert "glm53ctl down --instance t" in error.value.hint


def test_other_wishes_for_the_same_plan_agree(running: Instance):
    told = replace(PLAN, choices=(Choice("mode", "fast", "asked for"),))
    starting.agree(running, {"mode": "fast"}, lambda: told)


def test_another_plan_is_a_conflict_that_names_the_fields(running: Instance):
    other = replace(PLAN, mode=Mode.EXACT, listen=ListenPlan(port=9000))
    with pytest.raises(Conflict) as error:
        starting.agree(running, {"mode": "exact"}, lambda: other)
    assert "(mode fast → exact, listen.port 8080 → 9000)" in error.value.message
    assert "--replace" in error.value.hint


def test_a_plan_that_fits_nowhere_is_refused_not_offered_as_a_replacement(running: Instance):
    with pytest.raises(NoFit):
        starting.agree(running, {"mode": "exact", "port": "1"}, no_fit)


def test_wishes_leave_out_what_does_not_change_a_server():
    def wished(**values: str) -> dict[str, str]:
        environ = Environ({"HOME": "/nowhere", **values})
        return starting.wishes(profile.load({}, environ=environ))

    assert wished() == wished(GLM53_INSTANCE="two", GLM53_MIRRORS="https://a", NO_COLOR="1")
    assert wished() != wished(GLM53_PORT="9000")


def test_a_checkpoint_that_is_not_there_is_said_before_the_start():
    with pytest.raises(ArtifactError, match="/m is not there"):
        starting.check_startable(PLAN)


@pytest.mark.parametrize(("exit_code", "kind"), [(2, UsageError), (7, ArtifactError)])
def test_failures_become_the_error_of_their_exit_code(running: Instance, exit_code: int, kind):
    failure = Failure("x", "what", exit_code=exit_code, error_id="ART-002", proof="seen")
    record = {"last_failure": failure.to_dict(), "exit_code": exit_code}
    error = starting.start_error(running, record)
    assert type(error) is kind
    assert (error.message, error.error_id) == ("what (proof: seen)", "ART-002")


def test_a_stop_during_the_start_is_no_success(running: Instance):
    earlier = Failure("killed", "an earlier life's end", exit_code=8).to_dict()
    for failure in (None, earlier):
        error = starting.start_error(running, {"last_failure": failure, "exit_code": 0})
        assert isinstance(error, StartFailed)
        assert error.message == "'t' was stopped while it started"


@pytest.mark.parametrize("host", ["..", "no such host", "a" * 70, "256.1.1.1.1"])
def test_a_host_that_is_no_address_is_said_before_the_start(host: str, tmp_path: Path):
    model = replace(PLAN.model, path=str(tmp_path))
    with pytest.raises(UsageError, match="is not an address"):
        starting.check_startable(replace(PLAN, model=model, listen=ListenPlan(host, 1)))
