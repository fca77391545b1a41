"""The command line as a user meets it: help, typos, errors, JSON, colour, and no probes for help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_machines import gpu, record

from glm53ctl import cli, env, errors
from glm53ctl.probes.system import RecordedSystem, System

ROOT = Path(__file__).resolve().parents[2]
VERBS = ("doctor", "plan", "config", "version", "help")


@pytest.fixture
def glm53ctl(capsys, monkeypatch, tmp_path):
    """Run a command line in this process; returns (code, stdout, stderr)."""
    for name in list(os.environ):
        if name.startswith(("GLM53_", "XDG_", "HF_", "CUDA_")) or "COLOR" in name:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def call(*arguments: str, **environ: str) -> tuple[int, str, str]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        code = cli.run(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def no_probes(monkeypatch):
    """Fails the test when anything asks the machine a question."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a probe ran")

    for name in ("run", "nvml", "measure", "read"):
        monkeypatch.setattr(System, name, refuse)
        monkeypatch.setattr(RecordedSystem, name, refuse)


@pytest.mark.usefixtures("no_probes")
@pytest.mark.parametrize(
    "line",
    ["--help", "--version", "version", "config show", "help exit-codes", "help files"]
    + [f"{verb} --help" for verb in VERBS],
)
def test_T001_help_and_settings_ask_the_machine_nothing(glm53ctl, line):
    code, out, _ = glm53ctl(*line.split())
    assert code == 0
    assert out


def test_root_help_fits_one_screen_in_groups(glm53ctl):
    code, out, _ = glm53ctl("--help")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 100 for line in lines)
    positions = [out.index(f"{panel}:") for panel in ("Start here", "Operate", "Help out")]
    assert positions == sorted(positions)


def test_T110_help_of_every_verb_works_and_shows_examples(glm53ctl):
    for verb in ("doctor", "plan"):
        code, out, _ = glm53ctl(verb, "--help")
        assert code == 0
        assert out.index("Examples:") < out.index("Options:")
    code, out, _ = glm53ctl()
    assert code == 0
    assert "Start here" in out


@pytest.mark.parametrize(
    ("line", "guess"),
    [("hlep", "`help`"), ("plan --prot 3", "`--port`"), ("doctor --stric", "`--strict`"),
     ("config shwo", "`show`"), ("stop", "`down`"), ("start", "`up`")],
)  # fmt: skip
def test_typos_get_a_did_you_mean_and_exit_2(glm53ctl, line, guess):
    code, out, err = glm53ctl(*line.split())
    assert (code, out) == (2, "")
    assert f"did you mean {guess}?" in err
    assert err.startswith("error[USE-001]: ")


def test_errors_are_one_id_one_message_and_a_hint(glm53ctl, tmp_path):
    record(tmp_path / "machine", total_gib=16, available_gib=12)
    code, out, err = glm53ctl("plan", GLM53_FAKE_ROOT=str(tmp_path / "machine"))
    assert (code, out) == (4, "")
    assert err.startswith("error[FIT-001]: glm-5.3-flash does not fit this machine:")
    assert "no NVIDIA device on this machine" in err
    assert "hint  the bundled model runs here: the same command with --model tiny" in err
    assert "Traceback" not in err


def test_tiny_in_a_mode_that_needs_a_card_is_told_to_leave_it_out(glm53ctl, tmp_path):
    record(tmp_path / "machine", total_gib=16, available_gib=12)
    fake = {"GLM53_FAKE_ROOT": str(tmp_path / "machine")}
    for mode in ("fast", "exact"):
        code, _, err = glm53ctl("plan", "--model", "tiny", "--mode", mode, **fake)
        assert (code, "hint  leave out --mode: tiny runs on the CPU" in err) == (4, True)


def test_json_is_one_document_even_on_failure(glm53ctl, tmp_path):
    record(tmp_path / "machine", total_gib=16, available_gib=12)
    fake = {"GLM53_FAKE_ROOT": str(tmp_path / "machine")}
    code, out, _ = glm53ctl("plan", "--json", **fake)
    body = json.loads(out)
    assert (code, body["ok"], body["exit_code"]) == (4, False, 4)
    assert body["error"]["id"] == "FIT-001"
    assert [item["mode"] for item in body["rejections"]] == ["fast", "exact", "cpu"]
    code, out, _ = glm53ctl("plan", "--json", "--nonsense", **fake)
    assert (code, json.loads(out)["error"]["id"]) == (2, "USE-001")
    code, out, _ = glm53ctl("doctor", "--quick", "--json", **fake)
    body = json.loads(out)
    assert (code, body["exit_code"], body["ok"]) == (4, 4, False)


def test_plan_for_a_card_that_is_not_here_says_so(glm53ctl, tmp_path):
    record(tmp_path / "machine", total_gib=16, available_gib=12)
    fake = {"GLM53_FAKE_ROOT": str(tmp_path / "machine")}
    changes = "gpu=RTX3090,ram=256GiB"
    code, out, _ = glm53ctl("plan", "--mode", "exact", "--what-if", changes, **fake)
    assert code == 0
    assert "NVIDIA GeForce RTX 3090 is not here: 24.0 GiB of VRAM, PCIe Gen4 x16" in out
    assert "link assumed" in out
    code, out, _ = glm53ctl("plan", "--mode", "exact", "--what-if", changes, "--json", **fake)
    body = json.loads(out)
    assert (code, body["what_if"], body["plan"]["gpu"]["uuid"]) == (0, changes, "GPU-what-if")
    assert all("measured" not in item["basis"] for item in body["predictions"])


def test_plan_of_tiny_runs_anywhere(glm53ctl, tmp_path):
    record(tmp_path / "machine", cores=4, total_gib=16, available_gib=12)
    fake = {"GLM53_FAKE_ROOT": str(tmp_path / "machine")}
    code, out, _ = glm53ctl("plan", "--model", "tiny", "--json", **fake)
    body = json.loads(out)
    assert code == 0
    assert body["plan"]["mode"] == "cpu"
    assert body["plan"]["cpu"]["threads"] == 4
    assert Path(body["plan"]["model"]["path"]).name == "tiny"
    code, out, _ = glm53ctl("plan", "--model", "tiny", "--explain", **fake)
    assert code == 0
    assert "no GPU needed" in out
    assert "as float32" in out


def test_plan_explains_what_it_chose_and_what_it_could_not(glm53ctl, tmp_path):
    record(tmp_path / "machine", gpus=[gpu()])
    code, out, _ = glm53ctl("plan", "--explain", GLM53_FAKE_ROOT=str(tmp_path / "machine"))
    assert code == 0
    assert "fast on NVIDIA GeForce RTX 3090 GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc" in out
    assert "cpu    not possible: would read 48 GB per token" in out
    assert "the checkpoint is not in" in out
    assert "14 threads on" in out


def test_config_shows_values_with_their_origin(glm53ctl):
    code, out, err = glm53ctl("config", "show", "--origin", GLM53_PORT="9000", GLM53_PROT="1")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("listen.port"))
    assert line.split() == ["listen.port", "9000", "environment:", "GLM53_PORT"]
    assert "unknown GLM53_PROT, did you mean GLM53_PORT?" in err
    code, out, _ = glm53ctl("config", "show", "--json")
    assert json.loads(out)["settings"]["listen.port"]["where"] == "GLM53_PORT"


def test_T070_a_key_never_appears_in_what_we_print(glm53ctl, tmp_path):
    record(tmp_path / "machine")
    secret = {"GLM53_API_KEY": "sk-sentinel-1", "GLM53_FAKE_ROOT": str(tmp_path / "machine")}
    for line in ("config show --origin", "plan --model tiny --json", "doctor --quick --json -v"):
        code, out, err = glm53ctl(*line.split(), **secret)
        assert code in {0, 4}
        assert "sk-sentinel-1" not in out + err


def test_help_pages_come_from_the_tables(glm53ctl):
    _, out, _ = glm53ctl("help", "environment")
    assert all(row.env in out for row in env.rows())
    _, out, _ = glm53ctl("help", "exit-codes")
    assert all(text in out for _, text in errors.EXIT_CODES)
    codes = {code for code, _ in errors.EXIT_CODES}
    assert {kind.exit_code for kind in _subclasses(errors.Glm53Error)} <= codes
    _, out, _ = glm53ctl("help", "modes")
    assert "bit-identical" in out
    code, out, _ = glm53ctl("help")
    assert (code, "exit-codes" in out) == (0, True)


def _subclasses(kind: type) -> set[type]:
    found = {kind}
    for child in kind.__subclasses__():
        found |= _subclasses(child)
    return found


def test_D16_a_bug_is_one_line_and_a_private_file_without_secrets(glm53ctl, monkeypatch, tmp_path):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("hf_abcdefghijklmnopqrstuvwxyz0123456789")

    monkeypatch.setattr("glm53ctl.profile.load", broken)
    code, out, err = glm53ctl("config", "show")
    assert (code, out) == (1, "")
    assert err.startswith("error[BUG-001]: bug in glm53ctl: ZeroDivisionError")
    assert "Traceback" not in err
    [file] = (tmp_path / "home/.local/state/glm53/crash").iterdir()
    text = file.read_text()
    assert "ZeroDivisionError: [redacted]" in text
    assert file.stat().st_mode & 0o077 == 0
    with pytest.raises(ZeroDivisionError):
        glm53ctl("config", "show", "--debug")


def test_debug_shows_the_traceback_of_an_error(glm53ctl):
    code, _, err = glm53ctl("plan", "--mode", "fsat", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert "did you mean 'fast'?" in err


def test_a_closed_pipe_is_not_an_error(tmp_path):
    """`glm53ctl help environment | head -1` ends quietly."""
    command = f"{sys.executable} -m glm53ctl help environment | head -1"
    found = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )  # fmt: skip
    assert found.stderr == ""


def test_T111_D14_no_colour_and_no_cutting_when_piped(tmp_path):
    record(tmp_path / "machine", gpus=[gpu()])
    found = subprocess.run(
        [sys.executable, "-m", "glm53ctl", "doctor", "--quick", "-v"], cwd=ROOT, capture_output=True, text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FORCE_COLOR": "0", "TERM": "dumb",
             "COLUMNS": "40", "GLM53_FAKE_ROOT": str(tmp_path / "machine")},
    )  # fmt: skip
    assert "\x1b" not in found.stdout
    assert "GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc" in found.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_D18_any_output_encoding_works(tmp_path, encoding):
    record(tmp_path / "machine")
    found = subprocess.run(
        [sys.executable, "-m", "glm53ctl", "doctor", "--quick"], cwd=ROOT, capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONIOENCODING": encoding,
             "LC_ALL": "de_DE.UTF-8", "GLM53_FAKE_ROOT": str(tmp_path / "machine")},
    )  # fmt: skip
    text = found.stdout.decode(encoding)
    assert found.stderr == b""
    assert ("✔" if encoding == "utf-8" else "[ok]") in text


def test_completion_is_offered(glm53ctl):
    found = subprocess.run(
        [sys.executable, "-m", "glm53ctl"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"],
             "_GLM53CTL_COMPLETE": "complete_bash", "COMP_WORDS": "glm53ctl do", "COMP_CWORD": "1"},
    )  # fmt: skip
    assert "doctor" in found.stdout.split()


@pytest.mark.parametrize("verb", ["status", "logs"])
def test_T002_a_missing_cdi_file_is_no_business_of_status_and_logs(glm53ctl, verb):
    code, out, err = glm53ctl(verb)
    assert code == 3
    assert "Traceback" not in err
    assert "CDI" not in out + err


def test_any_setting_can_be_a_flag(glm53ctl, tmp_path):
    record(tmp_path / "machine", cores=4)
    fake = {"GLM53_FAKE_ROOT": str(tmp_path / "machine"), "GLM53_MAX_BATCH": "7"}
    line = "plan --model tiny --json --set limits.max_batch=2 --set cpu.threads=3"
    body = json.loads(glm53ctl(*line.split(), **fake)[1])
    assert body["plan"]["limits"]["max_batch"] == 2
    assert body["plan"]["cpu"]["threads"] == 3
    assert body["settings"]["limits.max_batch"]["layer"] == "flag"
    code, _, err = glm53ctl("plan", "--set", "max_batch=2")
    assert (code, "did you mean 'limits.max_batch'?" in err) == (2, True)
    code, _, err = glm53ctl("plan", "--set", "limits.max_batch")
    assert (code, "is not KEY=VALUE" in err) == (2, True)


@pytest.mark.parametrize(
    ("line", "name"),
    [("plan --set cpu.threads=abc", "--set cpu.threads"), ("config set cpu.threads abc", "config set")],
)  # fmt: skip
def test_a_bad_value_is_blamed_on_what_was_typed(glm53ctl, line, name):
    code, _, err = glm53ctl(*line.split())
    assert code == 2
    assert f"]: {name}: 'abc' is not a value for cpu.threads" in err


def test_a_url_where_nothing_answers_ends_the_bench_at_once(glm53ctl):
    code, out, err = glm53ctl("bench", "--quick", "--url", "http://127.0.0.1:9")
    assert code == 3
    assert "RUN-003" in err
    assert "verdict" not in out
