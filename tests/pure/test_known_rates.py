"""Measured rates are remembered per machine, dated, and forgotten when they could be wrong."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import date, timedelta

import pytest
from recorded_machines import GIB, gpu, put, record

from glm53ctl import choose, doctor, known_rates
from glm53ctl.env import Environ
from glm53ctl.hardware import Measured
from glm53ctl.probes import machine
from glm53ctl.probes.system import RecordedSystem, System

DAY = date(2026, 11, 1)
ANSWERS = {
    "h2d": {"bytes_per_s": 25e9, "generation": 4, "width": 16, "pin_limit_bytes": GIB},
    "ram": {"bytes_per_s": 90e9},
    "tier": {"bytes_per_s": 50e9},
    "disk": {"bytes_per_s": 3e9},
}
RATES = Measured(25e9, 4, 16, 90e9, 50e9, 3e9, GIB)
KEPT = replace(RATES, disk_read_bytes_per_s=None, pin_limit_bytes=None, date=DAY.isoformat())


class Live(RecordedSystem):
    """A recorded machine that passes for a real one, so that its rates are kept."""

    recorded = False


@pytest.fixture
def system(tmp_path) -> System:
    home = {"HOME": str(tmp_path / "home")}
    return Live(Environ(home), record(tmp_path / "m", gpus=[gpu()], measured=ANSWERS).root)


@pytest.fixture
def rig(system):
    return machine.probe(system)


def kept(system, hardware, folder, rates=RATES, day=DAY):
    measured = replace(hardware, measured=rates)
    known_rates.keep(system, measured, hardware.gpus[0], folder, today=day)


def recalled(hardware, folder, day=DAY):
    return known_rates.recalled(hardware, hardware.gpus[0], folder, today=day).measured


def test_rates_come_back_with_their_day(system, rig, tmp_path):
    kept(system, rig, tmp_path / "cache")
    assert recalled(rig, tmp_path / "cache") == KEPT


@pytest.mark.parametrize(
    ("days", "found"), [(0, KEPT), (30, KEPT), (31, Measured()), (-1, Measured())]
)
def test_old_rates_do_not_count_nor_those_of_the_future(system, rig, tmp_path, days, found):
    kept(system, rig, tmp_path)
    assert recalled(rig, tmp_path, DAY + timedelta(days=days)) == found


def _changes(rig):
    card = rig.gpus[0]
    yield replace(rig, driver=replace(rig.driver, version="590.10"))
    yield replace(rig, gpus=(replace(card, uuid="GPU-another"),))
    yield replace(rig, gpus=(replace(card, address="0000:02:00.0"),))
    yield replace(rig, cpu=replace(rig.cpu, model_name="another"))
    yield replace(rig, cpu=replace(rig.cpu, quota_cpus=2.0))
    yield replace(rig, ram=replace(rig.ram, total_bytes=512 * GIB))


def test_another_part_means_unknown_rates(system, rig, tmp_path):
    kept(system, rig, tmp_path)
    for changed in _changes(rig):
        assert recalled(changed, tmp_path) == Measured()
    booted = replace(rig, host=replace(rig.host, boot_id="another"), ram=replace(rig.ram, available_bytes=1))  # fmt: skip
    assert recalled(booted, tmp_path) == KEPT


@pytest.mark.parametrize("part", ["h2d_bytes_per_s", "ram_read_bytes_per_s", "tier_bytes_per_s"])
def test_a_measurement_with_gaps_replaces_nothing(system, rig, tmp_path, part):
    kept(system, rig, tmp_path)
    kept(system, rig, tmp_path, rates=replace(RATES, **{part: None}), day=DAY + timedelta(days=1))
    assert recalled(rig, tmp_path) == KEPT


def test_beside_other_work_nothing_is_kept(system, rig, tmp_path):
    put(system.root, "/proc/loadavg", "17.20 3.00 1.00 18/900 4242\n")
    kept(system, rig, tmp_path)
    assert recalled(rig, tmp_path) == Measured()
    put(system.root, "/proc/loadavg", "1.20 17.00 17.00 2/900 4242\n")
    kept(system, rig, tmp_path)
    assert recalled(rig, tmp_path) == KEPT


def test_a_recorded_machine_keeps_nothing(rig, tmp_path):
    kept(record(tmp_path / "r", gpus=[gpu()]), rig, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_written_is_no_error(system, rig, tmp_path):
    (tmp_path / "file").write_text("")
    kept(system, rig, tmp_path / "file/cache")
    assert recalled(rig, tmp_path / "file/cache") == Measured()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"date": 1, "rates": {}}', '{"date": "2026-11-01"}',
     '{"date": "2026-11-01", "rates": {"tier_bytes_per_s": "fast"}}',
     '{"date": "2026-11-01", "rates": {"unheard": 1}}', '{"date": "2026-11-01", "rates": []}'],
)  # fmt: skip
def test_a_damaged_file_is_no_file(text):
    assert known_rates.parse(text, today=DAY) is None


def test_what_doctor_measured_is_what_plan_expects(system, rig):
    folder = choose.survey(choose.PlanOptions(), system=system).paths.cache_dir
    before = choose.decide(choose.survey(choose.PlanOptions(), system=system))
    assert before.predictions[0].basis == "link assumed, RAM assumed, CPU tier assumed"
    doctor.examine(choose.PlanOptions(), system, only=["CPU-001"], quick=True)
    assert not folder.exists()
    doctor.examine(choose.PlanOptions(), system, only=["RAM-002"], quick=False)
    assert [file.name for file in folder.iterdir()] == [
        known_rates.file_of(rig, rig.gpus[0], folder).name
    ]
    day = known_rates.utc_today()
    after = choose.decide(choose.survey(choose.PlanOptions(), system=system))
    assert after.predictions[0].basis == (
        f"link measured {day}, RAM measured {day}, CPU tier measured {day}"
    )


def test_plan_measure_keeps_its_rates_too(system, monkeypatch):
    monkeypatch.setattr(choose, "this_system", lambda _: system)
    situation = choose.measured(choose.survey(choose.PlanOptions(), system=system))
    assert situation.hardware.measured.date is None
    again = choose.survey(choose.PlanOptions(), system=system).hardware.measured
    assert (again.h2d_bytes_per_s, again.date) == (25e9, str(known_rates.utc_today()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another's home")
def test_root_by_sudo_leaves_the_users_home_alone(system, rig, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 1234, 1234)
    by_sudo = replace(system, environ=Environ({"HOME": str(home), "SUDO_USER": "owner"}))
    kept(by_sudo, rig, home / ".cache/glm53")
    assert list(home.iterdir()) == []
