"""A systemd unit. Our supervisor restarts a crashed or hung server; systemd restarts the supervisor."""

from __future__ import annotations

from glm53ctl.emit.deployment import RESTART_HEALS_NOT, STOP_S, Deployment


def unit(made: Deployment, *, user: bool) -> str:
    """Text of glm53.service, for the user's manager or for the system's (then as this user)."""
    exit_codes = " ".join(str(code) for code in RESTART_HEALS_NOT)
    lines = [
        f"# {made.name}.service: {_install_hint(made, user=user)}",
        "[Unit]",
        f"Description=GLM-5.3-Flash server ({made.instance})",
        "Wants=network-online.target",
        # Before it, a GPU may not have its device files yet.
        "After=network-online.target nvidia-persistenced.service",
        f"RequiresMountsFor={_quoted(str(made.model_dir))}",
        "StartLimitIntervalSec=30min",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={_quoted(made.command)} up --attach --yes",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in made.unit_environment),
        "# Secrets and further GLM53_ settings, mode 0600; the file may be missing.",
        f"EnvironmentFile=-{'%h/.config' if user else '/etc'}/glm53/{made.name}.env",
        *([] if user else [f"User={made.user_id}", f"Group={made.group_id}"]),
        "# The start is watched by progress, not by the clock: a download or a slow disk may take hours.",
        "TimeoutStartSec=infinity",
        f"TimeoutStopSec={STOP_S}",
        "KillMode=mixed",
        "Restart=on-failure",
        "RestartSec=5",
        "RestartSteps=5",
        "RestartMaxDelaySec=5min",
        "# Usage, blocked, conflict, missing model, given up: a restart does not heal these.",
        f"RestartPreventExitStatus={exit_codes}",
        "SuccessExitStatus=143",
        "# The supervisor finds out who was killed for memory, and says so.",
        "OOMPolicy=continue",
        *_limits(made, user=user),
        "NoNewPrivileges=yes",
        "UMask=0077",
        "",
        "[Install]",
        f"WantedBy={'default.target' if user else 'multi-user.target'}",
    ]
    return "\n".join(lines) + "\n"


def _limits(made: Deployment, *, user: bool) -> list[str]:
    """A user's manager cannot raise a hard limit, and a unit that tries does not start."""
    limits = ["LimitNOFILE=65536"]
    if not user or not made.memlock_limited:
        limits.append("LimitMEMLOCK=infinity")
    return limits


def _install_hint(made: Deployment, *, user: bool) -> str:
    if user:
        folder = "~/.config/systemd/user"
        return f"into {folder}/, then systemctl --user enable --now {made.name}"
    return f"into /etc/systemd/system/, then sudo systemctl enable --now {made.name}"


def _quoted(text: str) -> str:
    """One word for systemd: specifiers doubled, quoted when it has blanks."""
    text = text.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if any(letter in text for letter in " \t\"'") else text
