"""`models` and the download of `up` as a user calls them, with a fake hub behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import REPO, REVISION, FakeHub, Fault
from stage import Started, free_port, wait_until

from glm53ctl import cli, fetch
from glm53ctl.fetch import missing_bytes, store
from glm53ctl.fetch.catalog import FLASH_RELEASE, KnownFile, Release
from glm53ctl.paths import FLASH_FOLDER, tiny_checkpoint

TINY = {
    path.name: path.read_bytes()
    for path in tiny_checkpoint().iterdir()
    if path.suffix in {".json", ".safetensors", ".jinja"}
}
WEIGHTS = "model.safetensors"
RELEASE = Release(
    "glm-5.3-flash", REPO, "3.05bpw", REVISION, FLASH_FOLDER, 125 * 10**9, WEIGHTS, ()
)
# The real command line, with the pinned release replaced by the small one of this test.
DRIVER = f"""
import sys
from glm53ctl import cli, fetch
from glm53ctl.fetch.catalog import KnownFile, Release
fetch.FLASH_RELEASE = {RELEASE!r}
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    made = FakeHub(dict(TINY))
    yield made
    made.close()


class Shell:
    def __init__(self, hub: FakeHub, root: Path) -> None:
        self.root = root
        self.folder = root / "models" / FLASH_FOLDER
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GLM53_", "HF_"))
        }
        self.environment = {
            **kept,
            "GLM53_ROOT": str(root),
            "HOME": str(root),
            "HF_ENDPOINT": hub.url,
            "XDG_CONFIG_HOME": "",
            "XDG_RUNTIME_DIR": "",
        }

    def start(self, *arguments: str) -> Started:
        return Started(
            [sys.executable, "-c", DRIVER, *arguments],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture
def shell(hub: FakeHub, tmp_path: Path) -> Shell:
    return Shell(hub, tmp_path)


@pytest.fixture
def here(shell: Shell, monkeypatch, capsys):
    """The same command line inside this process; returns (code, stdout, stderr)."""
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("GLM53_MODEL_DIR", "GLM53_MODELS_DIR", "HF_HUB_OFFLINE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fetch, "FLASH_RELEASE", RELEASE)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_pull_list_path_verify_rm(here, shell, hub):
    code, out, _ = here("models", "path")
    assert (code, out) == (0, f"{shell.folder}\n")
    code, out, err = here("models", "pull", "--dry-run")
    assert "125.0 GB of 125.0 GB to fetch from turboderp/" in out
    assert "GB free" in out + err
    code, out, err = here("models", "pull", "--yes")
    assert (code, out) == (0, f"complete  {shell.folder}\n")
    assert f"{len(TINY)}/{len(TINY)} verified" in err
    code, out, _ = here("models", "list", "--json")
    body = json.loads(out)
    by_name = {item["name"]: item for item in body["models"]}
    assert body["schema"] == "glm53ctl.models/1"
    assert by_name["glm-5.3-flash"]["state"] == "complete"
    assert by_name["glm-5.3-flash"]["revision"] == REVISION
    assert by_name["tiny"]["state"] == "bundled"
    assert here("models", "verify")[:2] == (0, f"ok  {shell.folder} (every sha256)\n")
    code, out, _ = here("models", "rm", "--yes")
    assert (code, shell.folder.exists()) == (0, False)
    assert out.startswith(f"removed  {shell.folder} (")
    assert out.endswith(" MB)\n")
    assert here("models", "rm", "--yes")[0] == 7


@pytest.mark.parametrize("consent", [(), ("--yes",)])
def test_the_bundled_model_is_not_removed(here, shell, consent):
    """Also when a folder of the models directory has its name."""
    namesake = shell.root / "models" / "tiny"
    shutil.copytree(tiny_checkpoint(), namesake)
    before = sorted(path.name for path in tiny_checkpoint().iterdir())
    code, out, err = here("models", "rm", "tiny", *consent)
    assert (code, out) == (2, "")
    assert "'tiny' is part of the package (" in err
    assert "is not removed" in err
    assert sorted(path.name for path in tiny_checkpoint().iterdir()) == before
    assert namesake.is_dir()


def test_verify_knows_the_bundled_model_and_says_what_helps(here, tmp_path):
    code, out, _ = here("models", "verify", "tiny")
    assert (code, out) == (0, f"ok  {tiny_checkpoint()} (every tensor)\n")
    code, _, err = here("models", "verify")
    assert code == 7
    assert "hint  glm53ctl models pull" in err
    copy = shutil.copytree(tiny_checkpoint(), tmp_path / "copy")
    with (copy / WEIGHTS).open("r+b") as stream:
        stream.seek(-5, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-5, os.SEEK_END)
        stream.write(bytes([byte[0] ^ 1]))
    code, _, err = here("models", "verify", str(copy))
    assert code == 7
    assert f"({WEIGHTS}): wrong content" in err
    assert "models pull" not in err


def test_verify_of_somebody_who_is_not_there_says_so(here):
    code, out, err = here("models", "verify", "~nobody-here/m")
    assert (code, out) == (7, "")
    assert "there is no directory '~nobody-here/m'" in err


def test_verify_finds_one_flipped_byte_and_pull_fetches_only_that_file(here, shell, hub):
    assert here("models", "pull", "--yes")[0] == 0
    with (shell.folder / WEIGHTS).open("r+b") as stream:
        stream.seek(9_000_000)
        byte = stream.read(1)
        stream.seek(9_000_000)
        stream.write(bytes([byte[0] ^ 1]))
    assert here("models", "verify", "--quick")[0] == 0
    code, out, err = here("models", "verify")
    assert (code, out) == (7, "")
    assert f"{WEIGHTS}: wrong content" in err
    hub.requests.clear()
    assert here("models", "pull", "--yes")[0] == 0
    assert hub.fetched() == [WEIGHTS]
    assert here("models", "verify")[0] == 0


def test_pull_adopts_a_copy_that_somebody_put_there(here, shell, hub):
    shell.folder.mkdir(parents=True)
    for name, body in TINY.items():
        (shell.folder / name).write_bytes(body)
    assert here("models", "verify", "--quick")[0] == 0
    code, _, err = here("models", "verify")
    assert (code, "error[ART-008]" in err) == (7, True)
    (shell.folder / "tokenizer.json").write_bytes(b"{}")
    assert here("models", "pull", "--yes")[0] == 0
    assert hub.fetched() == ["tokenizer.json"]
    assert here("models", "verify")[0] == 0


def test_verify_json_is_one_document_even_when_something_is_wrong(here, shell):
    here("models", "pull", "--yes")
    (shell.folder / WEIGHTS).unlink()
    code, out, _ = here("models", "verify", "--json")
    assert code == 7
    assert "model.safetensors: missing" in json.loads(out)["error"]["message"]


def test_import_links_what_is_here_and_copies_only_when_told(
    here, shell, hub, tmp_path, monkeypatch
):
    copy = tmp_path / "nas"
    copy.mkdir()
    for name, body in TINY.items():
        (copy / name).write_bytes(body)
    monkeypatch.setattr(store, "_device", lambda _: -1)
    code, _, err = here("models", "import", str(copy))
    assert code == 7
    assert "on another disk" in err
    assert f"glm53ctl up --model {copy}" in err
    monkeypatch.undo()
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(fetch, "FLASH_RELEASE", RELEASE)
    code, out, _ = here("models", "import", str(copy))
    assert (code, out) == (0, f"linked  {len(TINY)} files into {shell.folder}\n")
    assert (shell.folder / WEIGHTS).samefile(copy / WEIGHTS)
    assert here("models", "verify")[0] == 0
    assert here("models", "import", str(copy))[0] == 7
    assert here("models", "rm", "--yes")[0] == 0
    assert sorted(item.name for item in copy.iterdir()) == sorted(TINY)
    assert here("models", "import", "--copy", str(copy))[0] == 0
    assert not (shell.folder / WEIGHTS).samefile(copy / WEIGHTS)
    assert hub.requests == []


def test_import_refuses_another_revision_and_what_is_no_checkpoint(
    here, shell, tmp_path, monkeypatch
):
    known = KnownFile("tokenizer.json", 1, "0" * 64, confirmed=True)
    law = Release("glm-5.3-flash", REPO, "b", REVISION, FLASH_FOLDER, 1, WEIGHTS, (known,))
    monkeypatch.setattr(fetch, "FLASH_RELEASE", law)
    code, _, err = here("models", "import", str(tiny_checkpoint()))
    assert code == 7
    assert "tokenizer.json is damaged or from another revision" in err
    monkeypatch.setattr(fetch, "FLASH_RELEASE", FLASH_RELEASE)
    code, _, err = here("models", "import", str(tiny_checkpoint()))
    assert (code, "is another model than glm-5.3-flash: tokenizer.json" in err) == (7, True)
    assert f"to serve this one: glm53ctl up --model {tiny_checkpoint()}" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, err = here("models", "import", str(empty))
    assert (code, "config.json is missing" in err) == (7, True)
    assert not shell.folder.exists()


def test_up_asks_before_a_large_download_and_never_does_it_offline(here, hub):
    line = ("up", "--engine", "scripted")
    code, _, err = here(*line)
    assert code == 7
    assert "error[ART-007]" in err
    assert "125.0 GB to download" in err
    assert "--yes" in err
    code, _, err = here(*line, "--yes", "--offline")
    assert code == 7
    assert "error[ART-006]" in err
    assert hub.requests == []


def test_what_cannot_run_here_is_not_downloaded(here, hub, tmp_path):
    code, _, err = here("up", "--yes", "--mode", "exact", "--set", "gpu.select=GPU-none")
    assert code in {2, 4}
    assert hub.requests == []
    assert "error[" in err


def test_up_downloads_serves_repairs_and_refuses_to_remove_what_runs(shell, hub):
    line = (
        "up",
        "--engine",
        "scripted",
        "--port",
        str(free_port()),
        "--yes",
        "-cs",
        "512",
        "-cs",
        "4096",
    )
    try:
        done = shell(*line)
        assert done.returncode == 0, done.stderr
        assert "ready  http://127.0.0.1:" in done.stdout
        plan = json.loads((shell.root / "state/default/plan.json").read_text())
        assert plan["model"]["path"] == str(shell.folder)
        assert plan["limits"]["cache_tokens"] == 4096  # the last one wins
        refused = shell("models", "rm", "--yes")
        assert (refused.returncode, shell.folder.exists()) == (6, True)
        assert "in use by instance default" in refused.stderr
        assert shell("down", "--force").returncode == 0
        # T-085
        (shell.folder / WEIGHTS).write_bytes(b"")
        hub.requests.clear()
        again = shell(*line)
        assert again.returncode == 0, again.stderr
        assert hub.fetched() == [WEIGHTS]
    finally:
        shell("down", "--force")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_an_interrupted_download_goes_on_where_it_was(shell, hub, number, code):
    hub.faults[WEIGHTS] = [Fault("slow", after=6_000_000, seconds=0.05)]
    part = shell.folder / ".glm53-partial"
    with shell.start("models", "pull", "--yes") as process:
        wait_until(lambda: any(part.glob(f"{WEIGHTS}.*")), 20)
        # What was written since the last note of how far it is does not count: wait for more than is asked.
        wait_until(lambda: next(part.glob(f"{WEIGHTS}.*")).stat().st_size > 5_000_000, 20)
        process.send_signal(number)
        _, err = process.communicate(timeout=10)
    assert process.returncode == code
    if number == signal.SIGINT:
        assert "what has arrived is kept, go on with: glm53ctl models pull" in err
    hub.requests.clear()
    left = missing_bytes(RELEASE, shell.folder)
    assert 0 < left < len(TINY[WEIGHTS]) - 3_000_000
    started = time.monotonic()
    done = shell("models", "pull", "--yes")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 30
    [span] = [
        span for _, path, span in hub.requests if path == f"/data/{WEIGHTS}" and span != "bytes=0-0"
    ]
    assert span is not None
    assert int(span.removeprefix("bytes=").rstrip("-")) > 3_000_000
    assert f"process {process.pid} ended before it was done" in done.stderr
    assert {name: (shell.folder / name).read_bytes() for name in TINY} == TINY


def test_a_second_download_into_the_same_folder_is_refused(shell, hub):
    hub.faults[WEIGHTS] = [Fault("slow", seconds=0.05)]
    with shell.start("models", "pull", "--yes") as first:
        wait_until(lambda: (shell.folder / "glm53-lock.json").exists(), 20)
        second = shell("models", "pull", "--yes")
        assert second.returncode == 6
        assert f"process {first.pid} downloads into" in second.stderr
        first.kill()


def test_a_directory_of_the_user_is_filled_when_it_is_empty(shell, hub, tmp_path):
    """An empty volume at GLM53_MODEL_DIR, as a container mounts it."""
    volume = tmp_path / "volume"
    (volume / "lost+found").mkdir(parents=True)
    shell.environment["GLM53_MODEL_DIR"] = str(volume)
    done = shell("models", "pull", "--yes")
    assert done.returncode == 0, done.stderr
    assert (volume / WEIGHTS).read_bytes() == TINY[WEIGHTS]
    assert shell("plan", "--engine", "scripted", "--json").returncode == 0


def test_every_command_of_the_page_on_downloads_works(here, shell, tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs/download.md"
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, body in TINY.items():
        (copy / name).write_bytes(body)
    lines = [
        line.removeprefix("$ glm53ctl ")
        for line in page.read_text().splitlines()
        if line.startswith("$ glm53ctl ")
    ]
    assert len(lines) >= 8
    for line in lines:
        code, _, err = here(*line.replace("/mnt/nas/GLM-5.3-Flash-exl3", str(copy)).split())
        assert code == 0, f"{line}: {err}"
    assert (shell.folder / WEIGHTS).samefile(copy / WEIGHTS)
