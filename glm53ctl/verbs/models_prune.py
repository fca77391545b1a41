"""`glm53ctl models prune`: delete what no start and no download needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm53ctl.verbs import options

if TYPE_CHECKING:
    from pathlib import Path

    from glm53ctl.fetch.prune import Leftover


def prune(*, yes: options.YesOption = False, json_: options.JsonOption = False) -> None:
    """Show what can be deleted: old revisions, unfinished imports, stale parts of downloads.

    Deletes it with --yes only. The pinned model, what an instance serves or served last, and what
    was not downloaded by glm53ctl stay.

    Examples:

      glm53ctl models prune

      glm53ctl models prune --yes
    """
    from dataclasses import asdict

    from glm53ctl import in_use, render
    from glm53ctl.fetch import prune as pruning
    from glm53ctl.model_source import named_folder
    from glm53ctl.verbs import models

    settings, paths, environ = models.setup()
    job = models.job_for(settings, paths, environ)
    used = {job.folder.resolve(), *in_use.served(paths)}
    if (named := named_folder(settings)) is not None:
        used.add(named)
    all_found = pruning.leftovers(paths.models_dir, job.release, job.folder, frozenset(used))
    found = [item for item in all_found if isinstance(item, pruning.Leftover)]
    left_alone = [item for item in all_found if isinstance(item, pruning.LeftAlone)]
    for item in left_alone:
        render.warn(f"left alone: {item.path}: {item.why}")
    total = pruning.remove_all(found) if yes else sum(item.freed_bytes for item in found)
    if json_:
        body = {"removed": yes, "freed_bytes": total, "leftovers": [asdict(i) for i in found]}
        body["left_alone"] = [asdict(item) for item in left_alone]
        render.emit_json({"schema": "glm53ctl.prune/1", "ok": True, **body})
        return
    _show(found, total, paths.models_dir, removed=yes)


def _show(found: list[Leftover], total: int, models_dir: Path, *, removed: bool) -> None:
    from glm53ctl import render

    rows = [
        (render.gigabytes(item.freed_bytes), render.plain(item.path), item.why) for item in found
    ]
    if rows:
        render.emit("\n".join(render.columns(rows, indent="")))
    if not found:
        render.emit(f"nothing to remove in {models_dir}")
    elif removed:
        render.emit(f"removed  {render.gigabytes(total)}")
    else:
        render.emit(f"would free {render.gigabytes(total)}: glm53ctl models prune --yes")
