"""docker compose, podman quadlet and docker run: the same container, spelled three ways.

The volume with the checkpoint never gets a relabelling option: it would rewrite 125 GB of metadata.
"""

from __future__ import annotations

import json
import shlex

from glm53ctl.emit.deployment import RESTART_HEALS_NOT, STOP_S, Deployment

SHM = "1g"
_LOG_SIZE, _LOG_FILES = "20m", "5"


def compose(made: Deployment) -> str:
    """A compose file. `docker compose -f FILE up -d` starts it."""
    environment = [f"      {name}: {_yaml(value)}" for name, value in made.container_environment]
    lines = [
        f"# {made.name}: docker compose up -d · docker compose logs -f · docker compose down",
        f"name: {made.name}",
        "services:",
        "  glm53:",
        f"    image: {_yaml(made.image)}",
        f"    container_name: {made.name}",
        f"    user: {_yaml(f'{made.user_id}:{made.group_id}')}",
        "    environment:",
        *environment,
        "    ports:",
        f"      - {_yaml(made.published)}",
        "    volumes:",
        *(
            [f"      - {_yaml(made.model_volume)}  # empty: downloaded"]
            if made.model_volume
            else []
        ),
        "      - state:/glm53",
        *_compose_secret(made),
        *_compose_gpu(made),
        "    ulimits:",
        "      memlock: -1  # the limit of the host is not inherited",
        f"    shm_size: {SHM}",
        "    init: true",
        "    cap_drop: [ALL]",
        '    security_opt: ["no-new-privileges:true"]',
        "    restart: unless-stopped",
        f"    stop_grace_period: {STOP_S}s",
        "    healthcheck:",
        f'      test: ["CMD-SHELL", {_yaml(made.health_command)}]',
        "      interval: 30s",
        "      timeout: 10s",
        "      retries: 3",
        f"      start_period: {made.start_s}s  # twice the expected load",
        "    logging:",
        "      driver: json-file",
        "      options:",
        f'        max-size: "{_LOG_SIZE}"',
        f'        max-file: "{_LOG_FILES}"',
        "volumes:",
        "  state:",
    ]
    if made.key_file:
        lines += ["secrets:", "  glm53-api-key:", f"    file: {_yaml(str(made.key_file))}"]
    return "\n".join(lines) + "\n"


def quadlet(made: Deployment) -> str:
    """A quadlet for podman: systemd runs the container."""
    lines = [
        f"# {made.name}.container: into ~/.config/containers/systemd/, then systemctl --user daemon-reload",
        "[Unit]",
        f"Description=GLM-5.3-Flash server ({made.instance})",
        "After=network-online.target nvidia-persistenced.service",
        *([f"RequiresMountsFor={made.model_dir}"] if made.model_volume else []),
        "StartLimitIntervalSec=30min",
        "StartLimitBurst=5",
        "",
        "[Container]",
        f"Image={made.image}",
        f"ContainerName={made.name}",
        "UserNS=keep-id",
        "GroupAdd=keep-groups",
        *([f"AddDevice=nvidia.com/gpu={made.gpu_uuid}"] if made.gpu_uuid else []),
        "# SELinux: with labels on, a container may not open the GPU's device files.",
        "SecurityLabelDisable=true",
        "DropCapability=all",
        "NoNewPrivileges=true",
        *([f"Volume={made.model_volume}"] if made.model_volume else []),
        f"Volume={made.name}-state:/glm53",
        *([f"Volume={made.key_file}:/run/secrets/glm53-api-key:ro"] if made.key_file else []),
        f"PublishPort={made.published}",
        *(f"Environment={_word(f'{name}={value}')}" for name, value in made.container_environment),
        "Ulimit=memlock=-1:-1",
        f"ShmSize={SHM}",
        "RunInit=true",
        f"StopTimeout={STOP_S}",
        f"HealthCmd={made.health_command}",
        "HealthInterval=30s",
        "HealthTimeout=10s",
        "HealthRetries=3",
        f"HealthStartPeriod={made.start_s}s",
        "LogDriver=journald",
        "",
        "[Service]",
        "# The first start pulls the image and downloads the model.",
        "TimeoutStartSec=infinity",
        f"TimeoutStopSec={STOP_S + 15}",
        "Restart=on-failure",
        "RestartSec=5",
        f"RestartPreventExitStatus={' '.join(str(code) for code in RESTART_HEALS_NOT)}",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def docker_run(made: Deployment) -> str:
    """One `docker run` command, a flag per line; arguments after the image go to the server."""
    pairs = [
        ("--name", made.name),
        ("--user", f"{made.user_id}:{made.group_id}"),
        *(("--env", f"{name}={value}") for name, value in made.container_environment),
        ("--publish", made.published),
        *([("--volume", made.model_volume)] if made.model_volume else []),
        ("--volume", f"{made.name}-state:/glm53"),
        *_run_secret(made),
        *_run_gpu(made),
        ("--ulimit", "memlock=-1"),
        ("--shm-size", SHM),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges:true"),
        ("--restart", "unless-stopped"),
        ("--stop-timeout", str(STOP_S)),
        ("--health-cmd", made.health_command),
        ("--health-start-period", f"{made.start_s}s"),
        ("--log-opt", f"max-size={_LOG_SIZE}"),
        ("--log-opt", f"max-file={_LOG_FILES}"),
    ]
    lines = ["docker run --detach --init", *(f"  {flag} {shlex.quote(it)}" for flag, it in pairs)]
    return " \\\n".join([*lines, f"  {shlex.quote(made.image)}"]) + "\n"


def _compose_gpu(made: Deployment) -> list[str]:
    """One GPU by UUID: an index may name another card after a reboot."""
    if made.gpu_uuid is None:
        return []
    driver = "cdi" if made.cdi else "nvidia"
    device = f"nvidia.com/gpu={made.gpu_uuid}" if made.cdi else made.gpu_uuid
    return [
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices:",
        f"            - driver: {driver}",
        f"              device_ids: [{_yaml(device)}]",
        *([] if made.cdi else ["              capabilities: [gpu]"]),
    ]


def _compose_secret(made: Deployment) -> list[str]:
    return ["    secrets:", "      - glm53-api-key"] if made.key_file else []


def _run_gpu(made: Deployment) -> list[tuple[str, str]]:
    if made.gpu_uuid is None:
        return []
    if made.cdi:
        return [("--device", f"nvidia.com/gpu={made.gpu_uuid}")]
    return [("--gpus", f"device={made.gpu_uuid}")]


def _run_secret(made: Deployment) -> list[tuple[str, str]]:
    return [("--volume", f"{made.key_file}:/run/secrets/glm53-api-key:ro")] if made.key_file else []


def _yaml(text: str) -> str:
    """A YAML scalar: a JSON string is one; compose interpolates $, so it is doubled."""
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)


def _word(text: str) -> str:
    text = text.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if " " in text else text
