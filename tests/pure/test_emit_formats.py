"""What `emit` writes: golden texts for a recorded machine, and the rules that every format must keep."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from recorded_machines import MACHINES, gpu, put, record

from glm53ctl import choose
from glm53ctl.emit import containers, gateway, systemd
from glm53ctl.emit.deployment import Deployment, deployment, start_seconds
from glm53ctl.env import Environ
from glm53ctl.fetch import FLASH_RELEASE
from glm53ctl.runtime import IMAGE as BUILT_IMAGE
from glm53ctl.supervisor.lifecycle import Policy

GOLDEN = Path(__file__).parent / "golden" / "emit"
IMAGE = "registry.example/glm53ctl@sha256:" + "0" * 64
HOME = {"HOME": "/home/ada"}
UUID = "GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc"


def made(root: Path, name: str = "rig-3090-x16", *, extra=None, **flags) -> Deployment:
    """The deployment of a recorded machine for user 1000."""
    system = MACHINES[name](root)
    environ = Environ({**system.environ.values, **HOME, **(extra or {})})
    system = replace(system, environ=environ)
    situation = choose.survey(choose.PlanOptions(**flags), system=system)
    plan = choose.decide(situation).chosen()
    found = deployment(situation, plan, system, command="/opt/glm53/bin/glm53ctl", image=IMAGE)
    return replace(found, user_id=1000, group_id=1000)


def texts(root: Path) -> dict[str, str]:
    """Every golden file's content."""
    plain = made(root / "plain", extra={"GLM53_MODE": "fast", "GLM53_EC_RESERVE_GB": "1.5"})
    put(root / "second", "/usr/lib/wsl/lib/nvidia-smi", "")
    second = made(
        root / "second", "wsl2-4090", instance="second", port=8081, mode="exact", sets=("gpu.triton_pin=false",)
    )  # fmt: skip
    backends = [
        gateway.Backend("default", "http://127.0.0.1:8080", "glm-5.3-flash", 4, has_key=False),
        gateway.Backend("attic-2", "http://10.0.0.3:8080", "glm-5.3-flash", 2, has_key=True),
    ]
    place = {
        "port": 8080,
        "served_name": "glm-5.3-flash",
        "cache_dir": "/home/ada/.cache/huggingface",
    }
    return {
        "glm53.service": systemd.unit(plain, user=True),
        "glm53-second.service": systemd.unit(second, user=False),
        "compose.yaml": containers.compose(plain),
        "glm53.container": containers.quadlet(plain),
        "docker-run.sh": containers.docker_run(plain),
        "litellm.yaml": gateway.litellm(backends),
        "sglang.yaml": gateway.hand_over("sglang", gpus=8, **place),
        "vllm.yaml": gateway.hand_over("vllm", gpus=4, **place),
    }


NAMES = (
    "glm53.service", "glm53-second.service", "compose.yaml", "glm53.container", "docker-run.sh",
    "litellm.yaml", "sglang.yaml", "vllm.yaml",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, str]:
    return texts(tmp_path_factory.mktemp("emit"))


def test_every_format_has_a_golden_file(written):
    assert tuple(written) == NAMES
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_goldens_of_emit(written, name):
    """`python scripts/make_golden.py` rewrites the files; review the difference."""
    assert written[name] == (GOLDEN / name).read_text(encoding="utf-8")


def keys(text: str, section: str) -> dict[str, list[str]]:
    """A section of a unit, every key with all its values."""
    found: dict[str, list[str]] = {}
    inside = False
    for line in text.splitlines():
        if line.startswith("["):
            inside = line == f"[{section}]"
        elif inside and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_D12_units_do_not_restart_for_ever(written):
    for name in ("glm53.service", "glm53-second.service", "glm53.container"):
        unit, service = keys(written[name], "Unit"), keys(written[name], "Service")
        assert unit["StartLimitBurst"] == ["5"]
        assert service["Restart"] == ["on-failure"]
        assert service["RestartPreventExitStatus"] == ["2 4 6 7 9"]
    assert keys(written["glm53.service"], "Service")["RestartSteps"] == ["5"]


def test_T067_units_come_after_the_device_files_of_the_gpu(written):
    for name in ("glm53.service", "glm53.container"):
        [after] = keys(written[name], "Unit")["After"]
        assert "nvidia-persistenced.service" in after.split()


def test_T035_T036_T037_a_unit_finds_nvidia_smi_where_wsl_keeps_it(written):
    paths = [
        line
        for line in keys(written["glm53-second.service"], "Service")["Environment"]
        if line.startswith("PATH=")
    ]
    assert [line.rpartition(":")[2] for line in paths] == ["/usr/lib/wsl/lib"]
    assert "wsl" not in written["glm53.service"]


def test_T103_a_users_unit_raises_no_limit_that_its_manager_cannot(tmp_path):
    plain = made(tmp_path)
    limited = replace(plain, memlock_limited=True)
    assert "LimitMEMLOCK" not in systemd.unit(limited, user=True)
    assert "LimitMEMLOCK=infinity" in systemd.unit(limited, user=False)
    assert "LimitMEMLOCK=infinity" in systemd.unit(replace(plain, memlock_limited=False), user=True)


def service_of(text: str) -> dict:
    [service] = yaml.safe_load(text)["services"].values()
    return service


def test_T102_containers_get_their_own_memlock(written):
    assert service_of(written["compose.yaml"])["ulimits"] == {"memlock": -1}
    assert keys(written["glm53.container"], "Container")["Ulimit"] == ["memlock=-1:-1"]
    assert "--ulimit memlock=-1" in written["docker-run.sh"]


def test_T077_container_logs_are_bounded(written):
    assert service_of(written["compose.yaml"])["logging"] == {
        "driver": "json-file", "options": {"max-size": "20m", "max-file": "5"},
    }  # fmt: skip
    assert "--log-opt max-size=20m" in written["docker-run.sh"]


def test_T054_health_waits_twice_the_load_and_longer_for_a_download(tmp_path):
    system = MACHINES["rig-3090-x16"](tmp_path)
    situation = choose.survey(choose.PlanOptions(), system=system)
    load_s = 125e9 / 0.5e9
    missing_s = start_seconds(situation)
    there = replace(situation, model=replace(situation.model, present=True))
    assert start_seconds(there) >= 2 * load_s
    assert missing_s - start_seconds(there) >= FLASH_RELEASE.total_bytes / 10e6 - 60
    measured = replace(there.hardware.measured, disk_read_bytes_per_s=7_000_000_000)
    fast = replace(there, hardware=replace(there.hardware, measured=measured))
    assert start_seconds(fast) == 600
    assert (
        service_of(containers.compose(made(tmp_path / "x")))["healthcheck"]["start_period"]
        == f"{missing_s}s"
    )
    assert missing_s > Policy().start_stall_s


def test_containers_are_published_on_loopback_and_hold_few_rights(written):
    service = service_of(written["compose.yaml"])
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "1000:1000"
    assert service["environment"]["GLM53_MODE"] == "fast"
    assert service["environment"]["GLM53_EC_RESERVE_GB"] == "1.5"
    assert service["init"] is True
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": [UUID], "capabilities": ["gpu"]}


def test_the_checkpoint_is_never_relabelled(written):
    for name in ("compose.yaml", "glm53.container", "docker-run.sh"):
        mounts = re.findall(r"\S+:/models\S*", written[name])
        assert mounts
        assert not any(re.search(r":[^/]*[zZ]", mount.rpartition("/models")[2]) for mount in mounts)


def test_T038_a_cdi_specification_of_gpus_is_used_and_no_other(tmp_path):
    put(
        tmp_path / "a",
        "/var/run/cdi/m.yaml",
        "kind: management.nvidia.com/gpu\ndevices:\n- name: all\n",
    )
    other = record(tmp_path / "a", gpus=[gpu()])
    put(tmp_path / "b", "/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: all\n")
    ours = record(tmp_path / "b", gpus=[gpu()])
    for system, driver in ((other, "nvidia"), (ours, "cdi")):
        situation = choose.survey(choose.PlanOptions(), system=system)
        plan = choose.decide(situation).chosen()
        text = containers.compose(
            deployment(situation, plan, system, command="glm53ctl", image=None)
        )
        [device] = service_of(text)["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == driver
    assert device["device_ids"] == [f"nvidia.com/gpu={UUID}"]


def test_T070_T072_keys_travel_as_files(tmp_path):
    secret = {"GLM53_API_KEY": "sk-sentinel-1", "HF_TOKEN": "hf_" + "s" * 34}
    key_file = tmp_path / "key"
    key_file.write_text("sk-sentinel-1")
    found = made(tmp_path / "m", extra={**secret, "GLM53_API_KEY_FILE": str(key_file)})
    for text in (
        systemd.unit(found, user=True), containers.compose(found), containers.quadlet(found),
        containers.docker_run(found),
    ):  # fmt: skip
        assert "sentinel" not in text
        assert "hf_sss" not in text
        assert str(key_file) in text
    body = yaml.safe_load(containers.compose(found))
    assert body["secrets"] == {"glm53-api-key": {"file": str(key_file)}}
    assert (
        body["services"]["glm53"]["environment"]["GLM53_API_KEY_FILE"]
        == "/run/secrets/glm53-api-key"
    )


def test_awkward_words_survive_every_format(tmp_path):
    odd = replace(
        made(tmp_path), model_dir=Path('/data/a "b" $HOME 100%'), all_settings=(("GLM53_SERVED_NAME", "it's a $model"),)
    )  # fmt: skip
    body = yaml.safe_load(containers.compose(odd))["services"]["glm53"]
    assert body["environment"]["GLM53_SERVED_NAME"] == "it's a $$model"
    assert body["volumes"][0] == '/data/a "b" $$HOME 100%:/models'
    words = shlex.split(containers.docker_run(odd).replace("\\\n", " "))
    assert '/data/a "b" $HOME 100%:/models' in words
    assert "GLM53_SERVED_NAME=it's a $model" in words
    assert 'RequiresMountsFor="/data/a \\"b\\" $HOME 100%%"' in systemd.unit(odd, user=True)


def test_litellm_has_one_model_name_and_a_key_variable_each(written):
    body = yaml.safe_load(written["litellm.yaml"])
    assert {item["model_name"] for item in body["model_list"]} == {"glm-5.3-flash"}
    first, second = (item["litellm_params"] for item in body["model_list"])
    assert "api_key" not in first
    assert second["api_key"] == "os.environ/GLM53_API_KEY_ATTIC_2"
    assert [item["max_parallel_requests"] for item in (first, second)] == [4, 2]
    assert body["router_settings"]["routing_strategy"] == "least-busy"


@pytest.mark.parametrize(("name", "count"), [("sglang.yaml", "8"), ("vllm.yaml", "4")])
def test_hand_over_keeps_the_clients_url_and_model_name(written, name, count):
    service = service_of(written[name])
    command = service["command"]
    assert command[command.index("--served-model-name") + 1] == "glm-5.3-flash"
    assert count in command
    assert service["ports"] == ["127.0.0.1:8080:8000"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", ["glm53.service", "glm53-second.service"])
def test_systemd_accepts_the_units(written, tmp_path, name):
    """Version 252 does not know RestartSteps yet and says so; nothing else may be said."""
    command = tmp_path / "glm53ctl"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    file = tmp_path / name
    file.write_text(written[name].replace("/opt/glm53/bin/glm53ctl", str(command)))
    found = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    said = [line for line in found.stderr.splitlines() if "Restart" not in line]
    if any("Failed to initialize manager" in line for line in said):
        pytest.skip("systemd-analyze does not run in this sandbox")
    assert (found.returncode, said) == (0, [])


def test_one_name_for_the_image_that_a_checkout_builds():
    root = Path(__file__).parents[2]
    for page in ("docker/compose.yaml", "docs/install.md"):
        names = set(re.findall(r"\bglm53ctl:[\w.]+", (root / page).read_text()))
        assert names == {BUILT_IMAGE}, page


def test_tiny_starts_soon_and_needs_no_mount(tmp_path):
    tiny = made(tmp_path, "laptop-no-gpu", model="tiny")
    assert tiny.start_s < 600
    assert "RequiresMountsFor" not in containers.quadlet(tiny)
