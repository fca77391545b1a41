"""`glm53ctl models`: what checkpoints are here, and get, check, take over or remove one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glm53ctl.verbs import options
from glm53ctl.verbs.models_prune import prune

if TYPE_CHECKING:
    from glm53ctl.choose import Situation
    from glm53ctl.env import Environ, Settings
    from glm53ctl.fetch import Job
    from glm53ctl.paths import Paths
    from glm53ctl.plan import Plan

app = typer.Typer(help="List, download, check, import or remove checkpoints.", no_args_is_help=True)
app.command()(prune)


@dataclass(frozen=True, slots=True)
class Fetching:
    """What a user allows a start to download."""

    yes: bool = False
    offline: bool = False


@app.command("list")
def list_(*, json_: options.JsonOption = False) -> None:
    """List the checkpoints on this machine, whole or not.

    Examples:

      glm53ctl models list --json
    """
    from dataclasses import asdict

    from glm53ctl import render

    found = _stored()
    if json_:
        body = [asdict(item) for item in found]
        render.emit_json({"schema": "glm53ctl.models/1", "ok": True, "models": body})
        return
    rows = [
        (
            render.plain(item.name),
            item.state,
            render.gigabytes(item.size_bytes),
            render.plain(item.path),
        )
        for item in found
    ]
    render.emit("\n".join(render.columns(rows, indent="")))
    for item in found:
        for problem in item.problems[:5]:
            render.say(render.plain(f"  {item.name}: {problem}"))


@app.command()
def path(*, json_: options.JsonOption = False) -> None:
    """Print where GLM-5.3-Flash is or would be."""
    from glm53ctl import render
    from glm53ctl.fetch import is_incomplete

    job = _job()
    if json_:
        body = {"path": str(job.folder), "complete": not is_incomplete(job.folder)}
        render.emit_json({"schema": "glm53ctl.model-path/1", "ok": True, **body})
    else:
        render.emit(str(job.folder))


@app.command()
def pull(
    *,
    yes: options.YesOption = False,
    offline: options.OfflineOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is missing.")] = False,
    json_: options.JsonOption = False,
) -> None:
    """Download GLM-5.3-Flash, or what is missing of it. Interrupted: the same command goes on.

    Examples:

      glm53ctl models pull --yes

      GLM53_MODELS_DIR=/mnt/nvme glm53ctl models pull
    """
    from glm53ctl import render
    from glm53ctl.fetch import missing_bytes

    job = _job()
    count = missing_bytes(job.release, job.folder)
    if dry_run:
        text = f"{render.gigabytes(count)} of {render.gigabytes(job.release.total_bytes)} to fetch"
        render.emit(f"{job.folder}: {text} from {job.release.repo}@{job.release.revision[:12]}")
        _say_room(job, count)
        return
    ensure(job, Fetching(yes, offline), adopt=True)
    if json_:
        body = {"path": str(job.folder), "revision": job.release.revision}
        render.emit_json({"schema": "glm53ctl.pull/1", "ok": True, **body})
    else:
        render.emit(f"complete  {job.folder}")


@app.command()
def verify(
    *,
    folder: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="`tiny`, or a checkpoint's directory.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes and headers only.")] = False,
    json_: options.JsonOption = False,
) -> None:
    """Check every byte of the checkpoint against its lock. Exit code 7 when a file is wrong.

    Examples:

      glm53ctl models verify

      glm53ctl models verify --quick
    """
    from glm53ctl import render
    from glm53ctl.errors import ArtifactError
    from glm53ctl.verbs import verify_parts

    found = verify_parts.subject(folder, _job())
    place = found.folder
    problems = verify_parts.problems(found, quick=quick)
    if json_ and not problems:
        render.emit_json({"schema": "glm53ctl.verify/1", "ok": True, "path": str(place)})
    elif not problems:
        render.emit(f"ok  {place} ({verify_parts.compared(found, quick=quick)})")
    else:
        raise ArtifactError(
            f"{place} is not whole:\n" + "\n".join(f"  {item}" for item in problems),
            hint=found.hint,
            error_id="ART-004",
        )


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="A copy of the checkpoint.")],
    *,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy the files when they are on another disk.")
    ] = False,
    json_: options.JsonOption = False,
) -> None:
    """Take over a copy that is here already: check it, then link it into the models directory.

    Examples:

      glm53ctl models import /mnt/nas/GLM-5.3-Flash-exl3
    """
    from glm53ctl import render
    from glm53ctl.fetch import store
    from glm53ctl.fetch.progress import DownloadView, Meter

    job = _job()
    total = sum(item.stat().st_size for item in source.rglob("*") if item.is_file())
    meter = Meter(total)
    view = DownloadView("hash", meter)

    def on_bytes(count: int) -> None:
        meter.add(count)
        view.draw("")

    try:
        lock = store.import_from(job.release, source, job.folder, copy=copy, on_bytes=on_bytes)
    finally:
        view.close()
    if json_:
        body = {"path": str(job.folder), "size_bytes": lock.total_bytes}
        render.emit_json({"schema": "glm53ctl.import/1", "ok": True, **body})
    else:
        how = "copied" if copy else "linked"
        render.emit(f"{how}  {len(lock.files)} files into {job.folder}")


@app.command()
def rm(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As `models list` calls it.")
    ] = "glm-5.3-flash",
    *,
    yes: options.YesOption = False,
) -> None:
    """Remove a downloaded checkpoint. Refused while a server uses it.

    Examples:

      glm53ctl models rm glm-5.3-flash --yes
    """
    from glm53ctl import render
    from glm53ctl.errors import ArtifactError, UsageError
    from glm53ctl.fetch import store

    _, paths, _ = setup()
    bundled, *others = _stored()
    if name == bundled.name:
        raise UsageError(
            f"{name!r} is part of the package ({render.gigabytes(bundled.size_bytes)}) and is not removed",
            hint="it goes with the package: pip uninstall glm53ctl",
        )
    found = {item.name: Path(item.path) for item in others}
    if name not in found:
        raise ArtifactError(
            f"there is no checkpoint {name!r} to remove",
            hint="glm53ctl models list shows the names",
        )
    if not yes and not _confirm(f"remove {render.plain(found[name])}?"):
        raise typer.Abort
    size_bytes = store.remove(found[name], paths.models_dir, _users(paths, found[name]))
    render.emit(f"removed  {render.plain(found[name])} ({render.gigabytes(size_bytes)})")


def plan_with_model(situation: Situation, options: Any, fetching: Fetching) -> Plan:
    """The plan of a situation, made again after its checkpoint was downloaded."""
    from glm53ctl import choose

    plan = downloaded(situation, fetching)
    return plan if situation.model.present else choose.choose_plan(options)


def downloaded(situation: Situation, fetching: Fetching) -> Plan:
    """The plan of a situation, with its checkpoint downloaded where that was needed.

    Raises NoFit first: what cannot run here is not downloaded.
    """
    from glm53ctl import choose

    plan = choose.decide(situation).chosen()
    if not situation.model.present:
        settings = situation.profile.settings
        ensure(job_for(settings, situation.paths, situation.environ), fetching)
    return plan


def ensure(job: Job, fetching: Fetching, *, adopt: bool = False) -> None:
    """`ensure_model` with a terminal: asks there, talks on stderr."""
    from glm53ctl import fetch, render

    def agree(count: int) -> bool:
        what = f"download {render.gigabytes(count)} into {job.folder}?"
        return fetching.yes or (sys.stdin.isatty() and _confirm(what))

    offline = fetching.offline or job.environ.flag("HF_HUB_OFFLINE")
    say: Callable[[str], None] = lambda text: render.say(f" {text}")  # noqa: E731
    fetch.ensure_model(job, offline=offline, agree=agree, note=say, adopt=adopt)


def _say_room(job: Job, missing_bytes: int) -> None:
    """Whether a download would fit on its disk."""
    from glm53ctl import render
    from glm53ctl.errors import ArtifactError
    from glm53ctl.fetch.space import SPARE_BYTES, check_room

    disk = job.disk(job.folder)
    if disk is None or not missing_bytes:
        return
    total_bytes = job.release.total_bytes
    try:
        check_room(
            job.folder, disk, missing_bytes=missing_bytes, total_bytes=total_bytes, missing_files=1
        )
    except ArtifactError as err:
        render.emit(f"does not fit: {err.message}")
        render.say(f"  hint  {err.hint}")
        return
    free, needed = render.gigabytes(disk.free_bytes), render.gigabytes(missing_bytes + SPARE_BYTES)
    render.emit(f"fits: {free} free, {needed} needed")


def job_for(settings: Settings, paths: Paths, environ: Environ) -> Job:
    """The download that these settings ask for."""
    from glm53ctl import fetch

    folder = settings.model_dir or paths.models_dir / fetch.FLASH_RELEASE.folder
    return fetch.Job(fetch.FLASH_RELEASE, folder, environ, settings.mirrors)


def _job() -> Job:
    return job_for(*setup())


def setup() -> tuple[Settings, Paths, Environ]:
    """Settings, directories and environment of this user, without any flags."""
    from glm53ctl import profile
    from glm53ctl.env import Environ

    environ = Environ.current()
    found = profile.load({}, environ=environ)
    return found.settings, profile.paths_for(found, environ), environ


def _stored() -> list[Any]:
    from dataclasses import replace

    from glm53ctl.fetch import store
    from glm53ctl.paths import tiny_checkpoint

    settings, paths, environ = setup()
    flash = job_for(settings, paths, environ).folder
    places = store.candidates(paths.models_dir)
    if flash not in places and flash.is_dir():
        places.append(flash)
    named = [("glm-5.3-flash" if place == flash else place.name, place) for place in places]
    tiny = replace(store.describe("tiny", tiny_checkpoint()), state="bundled")
    return [tiny, *(store.describe(name, place) for name, place in named)]


def _users(paths: Paths, folder: Path) -> tuple[str, ...]:
    """Names of what serves this folder. Raises Conflict for an instance that could serve any."""
    from glm53ctl import in_use

    wanted = folder.resolve()
    names = tuple(f"instance {name}" for name, served in in_use.running(paths) if served == wanted)
    return names or (("a running server",) if in_use.is_held(folder) else ())


def _confirm(question: str) -> bool:
    return typer.confirm(question, default=False, err=True)
