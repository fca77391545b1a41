"""A glm53-lock.json that names files elsewhere: nothing is offered for it, and nothing breaks."""

from __future__ import annotations

import json
import shutil

import pytest

from glm53ctl import cli
from glm53ctl.fetch.lockfile import LOCK_NAME, PARTIAL
from glm53ctl.paths import tiny_checkpoint

ENTRY = {"path": "config.json", "size_bytes": 5, "sha256": None}


@pytest.mark.parametrize(
    "changed",
    [
        *(
            {"path": path}
            for path in (5, None, "a\0b", "../other/config.json", "/etc/passwd", "\ud800")
        ),
        *({"size_bytes": size} for size in ("x", None, -1, 1.5)),
        *({"sha256": value} for value in (5, "../../other", [])),
    ],
)
def test_list_and_prune_take_it_for_somebody_elses(tmp_path, monkeypatch, capsys, changed):
    monkeypatch.setenv("GLM53_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("GLM53_MODEL_DIR", "GLM53_MODELS_DIR", "GLM53_MODEL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "models/odd"
    shutil.copytree(tiny_checkpoint(), folder)
    (folder / PARTIAL).mkdir()
    (folder / PARTIAL / "config.json.unknown").write_text("a part")
    body = {"schema": "glm53ctl.lock/1", "repo": "r", "revision": "0" * 40}
    (folder / LOCK_NAME).write_text(json.dumps({**body, "files": [{**ENTRY, **changed}]}))
    before = sorted(folder.rglob("*"))
    assert cli.run(["models", "list"]) == 0
    assert "odd" in capsys.readouterr().out
    assert cli.run(["models", "prune", "--yes"]) == 0
    assert sorted(folder.rglob("*")) == before
