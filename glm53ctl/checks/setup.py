"""Checks of the setup: host, settings, installed engines, port, and whether any mode fits."""

from __future__ import annotations

import os
import shlex

from glm53ctl.checks.base import Context, Finding, Fix, Spec, Status, passed, skipped
from glm53ctl.env import Settings
from glm53ctl.hardware import Evidence
from glm53ctl.paths import foreign_home
from glm53ctl.planner import LOOPBACK
from glm53ctl.ports import another
from glm53ctl.profile import DEFAULT_PROFILE, Profile


def host(context: Context) -> Finding:
    found = context.hardware.host
    if found.wsl == 1:
        return Finding(
            Status.FAIL,
            "WSL 1 has neither a GPU nor Linux memory management",
            fix=Fix("upgrade the distribution", ("wsl --set-version <distribution> 2",)),
        )
    where = found.container or ("WSL2" if found.wsl else None)
    if where is None:
        where = "virtual machine" if context.hardware.cpu.hypervisor else "bare metal"
    return passed(f"{found.system}, {found.kernel}, {where}")


def owner(context: Context) -> Finding:
    """Root through sudo leaves files in somebody's home that they cannot change afterwards."""
    file = context.paths.config_file
    user = foreign_home(context.system.environ, file, user_id=os.geteuid())
    if user is None:
        return passed("not root through sudo")
    return Finding(
        Status.WARN,
        f"running as root in the home of {user}",
        fix=Fix("run glm53ctl without sudo: it needs no root"),
    )


def settings(context: Context) -> Finding:
    problem, warnings = context.profile.problem, context.profile.warnings
    if problem:
        return Finding(
            Status.FAIL,
            problem.message,
            required="settings that can be read; the checks below are for the defaults",
            fix=Fix(problem.hint or "correct it"),
        )
    if warnings:
        return Finding(
            Status.WARN,
            "; ".join(warnings),
            fix=Fix("see every name that is read", ("glm53ctl help environment",)),
        )
    sources = sorted({_source(context.profile, key) for key in context.profile.origins} - {""})
    return passed(f"from {', '.join(sources)}" if sources else "all at their defaults")


def _source(profile: Profile, key: str) -> str:
    """What gave a setting, in a user's words; nothing where the user gave nothing."""
    origin = profile.origins[key]
    match origin.layer:
        case "profile":
            return "" if profile.name == DEFAULT_PROFILE else f"profile {profile.name}"
        case "user":
            return "the file of settings"
        case _:
            return origin.where  # a flag or a variable; of a default nothing


def engines(context: Context) -> Finding:
    have = context.hardware.engines
    gpu = {"torch", "exllamav3", "fastapi"}
    cpu = {"torch", "transformers", "fastapi"}
    if context.wants_gpu and context.gpu is None:
        return skipped("no GPU to run it on")
    if context.wants_gpu:
        missing = gpu - have
        if not missing:
            return passed("torch and exllamav3 are installed")
        return Finding(
            Status.FAIL,
            f"{', '.join(sorted(missing))} not installed",
            fix=Fix("install the GPU engine", ("pip install 'glm53ctl[cuda]'",)),
        )
    missing = cpu - have
    if missing:
        return Finding(
            Status.FAIL,
            f"{', '.join(sorted(missing))} not installed",
            fix=Fix("install the CPU engine", ("pip install 'glm53ctl[cpu]'",)),
        )
    return passed("torch and transformers are installed")


def address(context: Context) -> Finding:
    wanted = context.profile.settings
    where = f"{wanted.host}:{wanted.port}"
    problem = context.system.bind_problem(wanted.host, wanted.port)
    if problem == "in use":
        holder = context.system.port_owner(wanted.port) or f"{where} is in use"
        if "glm53_server" in holder:
            return passed(f"{where} is our own server's")
        return Finding(
            Status.WARN,
            holder,
            fix=Fix("stop it, or choose another port", (_up_at(context, another(wanted.port)),)),
        )
    if problem == "not local":
        return Finding(
            Status.FAIL,
            f"{wanted.host} is not an address of this machine",
            fix=Fix(f"set by {context.profile.origin('listen.host')}; use 127.0.0.1 or 0.0.0.0"),
        )
    if problem is not None:
        return Finding(
            Status.FAIL,
            f"{where}: {problem}",
            fix=Fix("use a port from 1024 on", (_up_at(context, 8080),)),
        )
    return passed(f"{where} is free")


def _up_at(context: Context, port: int) -> str:
    """The start that was asked about, at another port."""
    wanted, usual = context.profile.settings, Settings()
    model = f" --model {shlex.quote(wanted.model)}" if wanted.model != usual.model else ""
    name = f" --instance {wanted.instance}" if wanted.instance != usual.instance else ""
    return f"glm53ctl up{model}{name} --port {port}"


def key(context: Context) -> Finding:
    """Beyond loopback a key is needed; a key file must be ours alone."""
    wanted = context.profile.settings
    file = wanted.api_key_file
    if file is None:
        if wanted.host in LOOPBACK:
            return skipped("not needed on loopback")
        return passed("generated at the first start, because others can reach the port")
    try:
        mode = file.stat().st_mode & 0o077
    except OSError as err:
        return Finding(Status.FAIL, f"{file}: {err.strerror}", fix=Fix("name an existing file"))
    if mode:
        return Finding(
            Status.WARN,
            f"{file} can be read by others",
            fix=Fix("close it", (f"chmod 600 {file}",)),
        )
    return passed(str(file))


def fit(context: Context) -> Finding:
    """The verdict: which mode would run."""
    outcome = context.outcome
    if outcome is None:
        error = context.outcome_error or context.model_error
        return Finding(
            Status.FAIL,
            error.message if error else "no plan could be made",
            fix=Fix(error.hint) if error and error.hint else None,
        )
    if outcome.plan is None:
        return Finding(
            Status.FAIL,
            f"{outcome.model_name} fits in no mode",
            evidence=tuple(Evidence(item.mode, item.reason) for item in outcome.rejections),
            fix=Fix("the bundled model runs here", ("glm53ctl up --model tiny",))
            if outcome.model_name != "tiny"
            else None,
        )
    expected = next((item for item in outcome.predictions if item.mode == outcome.plan.mode), None)
    speed = f", {expected.text} expected" if expected else ""
    return passed(f"{outcome.model_name} in mode {outcome.plan.mode}{speed}")


FIRST = (
    Spec("HOST-001", "host", "Host", host),
    Spec("HOST-002", "user", "Host", owner),
    Spec("CFG-001", "settings", "Host", settings),
)
LAST = (
    Spec("ENG-001", "engine", "Engine", engines),
    Spec("NET-001", "port", "Network", address),
    Spec("NET-002", "API key", "Network", key),
    Spec("FIT-001", "verdict", "Verdict", fit),
)
