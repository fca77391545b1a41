"""Doctor as a whole: goldens per recorded machine, exit codes, JSON, and that nothing stops it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_machines import MACHINES, gpu, put, record

from glm53ctl import choose, doctor, doctor_text, render
from glm53ctl.checks.base import Finding, Spec, Status
from glm53ctl.errors import UsageError
from glm53ctl.render import Look

GOLDEN = Path(__file__).parent / "golden" / "doctor.json"
PLAIN = Look(colour=False, unicode=True, live=False)


def diagnosis(name: str, root: Path) -> dict[str, object]:
    """What doctor says about a recorded machine: exit code, and each check in a line."""
    report = doctor.examine(choose.PlanOptions(), MACHINES[name](root), quick=False)
    return {
        "exit_code": report.exit_code(),
        "checks": {
            check.id: f"{check.finding.status}: {check.finding.observed}" for check in report.checks
        },
    }


@pytest.mark.parametrize("name", MACHINES)
def test_diagnosis_of_recorded_machines(name, tmp_path):
    """`python scripts/make_golden.py` rewrites the file; review the difference."""
    assert diagnosis(name, tmp_path) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


def with_specs(monkeypatch, *findings: Finding) -> None:
    """Replace the checks by ones that answer with these findings."""
    specs = tuple(
        Spec(f"T-{number}", f"check {number}", "Test", lambda _, found=found: found)
        for number, found in enumerate(findings)
    )
    monkeypatch.setattr(doctor, "SPECS", specs)


ADVICE = Finding(Status.WARN, "advice")
HARD = Finding(Status.FAIL, "hard")
FINE = Finding(Status.PASS, "fine")


@pytest.mark.parametrize(
    ("findings", "code", "strict"),
    [((FINE,), 0, 0), ((ADVICE, FINE), 0, 5), ((HARD,), 4, 4), ((ADVICE, HARD), 4, 4),
     ((Finding(Status.FAIL, "advisory", blocking=False),), 0, 5),
     ((Finding(Status.UNKNOWN, "?"), Finding(Status.SKIP, "-")), 0, 0)],
)  # fmt: skip
def test_T040_D01_exit_codes_tell_advice_from_blockers(
    tmp_path, monkeypatch, findings, code, strict
):
    with_specs(monkeypatch, *findings)
    report = doctor.examine(choose.PlanOptions(), record(tmp_path))
    assert report.exit_code() == code
    assert report.exit_code(strict=True) == strict
    body = doctor.document(report, strict=True)
    assert body["exit_code"] == strict
    assert body["blocking"] == [check.id for check in report.checks if check.finding is HARD]


def test_a_check_that_raises_is_unknown_and_the_others_answer(tmp_path, monkeypatch):
    def broken(_):
        raise ZeroDivisionError("oops")

    fine = Spec("T-2", "fine", "Test", lambda _: FINE)
    monkeypatch.setattr(doctor, "SPECS", (Spec("T-1", "broken", "Test", broken), fine))
    report = doctor.examine(choose.PlanOptions(), record(tmp_path))
    first, second = (check.finding for check in report.checks)
    assert first.status is Status.UNKNOWN
    assert "ZeroDivisionError: oops" in first.observed
    assert second is FINE


def test_a_probe_that_raises_is_an_unknown_fact(tmp_path, monkeypatch):
    def broken(_):
        raise RuntimeError("no such register")

    monkeypatch.setattr("glm53ctl.probes.cpu.probe", broken)
    report = doctor.examine(choose.PlanOptions(), record(tmp_path))
    assert ("cpu", "RuntimeError: no such register") in report.hardware.unknown
    assert len(report.checks) == len(doctor.SPECS)


def test_ignored_checks_are_shown_and_do_not_block(tmp_path):
    system = record(tmp_path, environ={"GLM53_DOCTOR_IGNORE": "GPU-001,FIT-001,RAM-001"}, total_gib=16,
                    available_gib=12)  # fmt: skip
    report = doctor.examine(choose.PlanOptions(), system)
    found = {check.id: check.finding.status for check in report.checks}
    assert found["GPU-001"] is found["FIT-001"] is Status.IGNORED
    assert report.exit_code() == 0


def test_only_skip_and_a_did_you_mean(tmp_path):
    system = record(tmp_path)
    some = doctor.examine(choose.PlanOptions(), system, only=["gpu-001", "CPU-002"])
    assert [check.id for check in some.checks] == ["GPU-001", "CPU-002"]
    rest = doctor.examine(choose.PlanOptions(), system, skip=["GPU-001"])
    assert len(rest.checks) == len(doctor.SPECS) - 1
    with pytest.raises(UsageError) as caught:
        doctor.chosen(["GPU-0001"], [])
    assert caught.value.hint == "did you mean GPU-001?"


def test_a_few_checks_measure_nothing_and_tell_only_what_was_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.measure, "measure", lambda *_: pytest.fail("measured"))
    report = doctor.examine(choose.PlanOptions(), record(tmp_path), only=["GPU-001"], quick=False)
    lines = list(doctor_text.lines(report, PLAIN))
    assert not any(line.endswith("flash on this machine") for line in lines)


def test_a_machine_that_was_ruled_out_downloads_nothing(tmp_path):
    report = doctor.examine(choose.PlanOptions(), MACHINES["laptop-no-gpu"](tmp_path))
    found = {check.id: check.finding for check in report.checks}["DISK-001"]
    assert (found.status, found.fix) == (Status.SKIP, None)


def test_one_note_is_one_note(tmp_path, monkeypatch):
    with_specs(monkeypatch, Finding(Status.WARN, "a thing"))
    report = doctor.examine(choose.PlanOptions(), record(tmp_path))
    assert ", 1 note, " in list(doctor_text.lines(report, PLAIN))[-1]


def test_ids_are_unique_and_stable_in_form():
    ids = [spec.id for spec in doctor.SPECS]
    assert len(set(ids)) == len(ids)
    assert all(
        area.isupper() and number.isdigit() for area, _, number in (i.partition("-") for i in ids)
    )


def test_json_has_the_documented_fields(tmp_path):
    report = doctor.examine(choose.PlanOptions(), record(tmp_path, gpus=[gpu()]))
    body = json.loads(json.dumps(doctor.document(report)))
    assert body["schema"] == "glm53ctl.doctor/1"
    assert {"host", "plan", "summary", "exit_code", "checks", "ok"} <= set(body)
    fields = {"id", "title", "status", "blocking", "observed", "required", "evidence", "fix", "ms"}
    assert all(fields <= set(check) for check in body["checks"])
    assert sum(body["summary"].values()) == len(body["checks"])
    vram = next(check for check in body["checks"] if check["id"] == "GPU-006")
    assert vram["numbers"]["free_bytes"] == (24_564 << 20) - (400 << 20)


def test_every_fail_and_warning_of_recorded_machines_has_a_way_out(tmp_path):
    for name, build in MACHINES.items():
        report = doctor.examine(choose.PlanOptions(), build(tmp_path / name), quick=False)
        for check in report.checks:
            if check.finding.status is Status.FAIL:
                assert (
                    check.finding.fix
                    or check.finding.required
                    or check.id in {"GPU-002", "FIT-001"}
                ), (
                    name,
                    check,
                )


def test_lines_keep_names_with_brackets_and_long_uuids_whole(tmp_path):
    """D-13 and D-14: text is data; nothing is markup and nothing is cut."""
    name = "[/opt/x] [docs] RTX 3090 [bold]"
    system = record(tmp_path, gpus=[gpu(name)])
    report = doctor.examine(choose.PlanOptions(), system)
    text = "\n".join(doctor_text.lines(report, PLAIN, verbose=True))
    assert f"{name}  GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc" in text


def test_text_groups_what_was_skipped_for_one_reason(tmp_path):
    report = doctor.examine(choose.PlanOptions(model="tiny"), record(tmp_path))
    short = list(doctor_text.lines(report, PLAIN))
    assert any("card, driver version, PCIe" in line for line in short)
    assert len(list(doctor_text.lines(report, PLAIN, verbose=True))) > len(short)
    assert short[-1].startswith("0 blocking")


def test_fixes_that_need_root_can_be_printed_alone(tmp_path):
    system = record(tmp_path, gpus=[gpu(persistence=0)])
    report = doctor.examine(choose.PlanOptions(), system)
    assert "sudo systemctl enable --now nvidia-persistenced" in list(doctor.sudo_commands(report))


def test_tiny_needs_no_gpu_and_passes_on_a_laptop(tmp_path):
    report = doctor.examine(choose.PlanOptions(model="tiny"), MACHINES["laptop-no-gpu"](tmp_path))
    assert report.exit_code() == 0
    found = {check.id: check.finding for check in report.checks}
    assert found["GPU-001"].status is Status.SKIP
    assert "tiny in mode cpu" in found["FIT-001"].observed


def test_a_broken_checkpoint_is_a_finding(tmp_path):
    folder = tmp_path / "not-a-model"
    folder.mkdir()
    report = doctor.examine(choose.PlanOptions(model=str(folder)), record(tmp_path / "m"))
    found = {check.id: check.finding for check in report.checks}["DISK-001"]
    assert found.status is Status.FAIL
    assert "config.json" in found.observed


def test_a_port_in_use_is_advice_and_a_foreign_address_blocks(tmp_path):
    system = record(tmp_path)
    machine = json.loads((tmp_path / "machine.json").read_text())
    machine["bind"] = {"127.0.0.1:8080": "in use", "192.168.1.33:8080": "not local"}
    put(tmp_path, "/machine.json", json.dumps(machine))
    busy = doctor.examine(choose.PlanOptions(model="tiny"), system, only=["NET-001"])
    assert busy.checks[0].finding.status is Status.WARN
    fix = busy.checks[0].finding.fix
    assert fix is not None
    assert fix.commands == ("glm53ctl up --model tiny --port 8081",)
    machine["owners"] = {"8080": "127.0.0.1:8080 is held by pid 7: python -m glm53_server --plan x"}
    put(tmp_path, "/machine.json", json.dumps(machine))
    ours = doctor.examine(choose.PlanOptions(model="tiny"), system, only=["NET-001"])
    assert ours.checks[0].finding.observed == "127.0.0.1:8080 is our own server's"
    foreign = doctor.examine(
        choose.PlanOptions(model="tiny", host="192.168.1.33"), system, only=["NET-001"]
    )
    assert foreign.checks[0].blocks


def test_disk_space_counts_against_what_is_missing(tmp_path):
    system = record(tmp_path, gpus=[gpu()], free_gb=61)
    report = doctor.examine(choose.PlanOptions(), system)
    found = {check.id: check for check in report.checks}["DISK-002"]
    assert found.blocks
    assert found.finding.numbers["free_bytes"] == 61_000_000_000
    assert "125.3 GB to fetch" in found.finding.observed


def test_quick_takes_little_time_on_this_machine(capsys):
    from glm53ctl.env import Environ
    from glm53ctl.probes.system import System

    started = time.monotonic()
    report = doctor.examine(choose.PlanOptions(model="tiny"), System(Environ.current()))
    elapsed = time.monotonic() - started
    with capsys.disabled():
        sys.stdout.write(f" doctor --quick: {elapsed:.2f} s ")
    assert report.elapsed_s < 4  # 1.5 s on an idle machine; tests share theirs


def test_look_is_replaceable():
    assert replace(PLAIN, unicode=False).glyph("fail") == "[FAIL]"
    assert render.gib(5 << 20) == "5 MiB"


def test_the_holder_of_a_port_is_named(tmp_path):
    import socket

    from glm53ctl.env import Environ
    from glm53ctl.probes.system import System

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        system = System(Environ.current())
        report = doctor.examine(
            choose.PlanOptions(model="tiny", port=port), system, only=["NET-001"]
        )
    found = report.checks[0].finding
    assert found.status is Status.WARN
    assert f"127.0.0.1:{port} is held by pid" in found.observed
