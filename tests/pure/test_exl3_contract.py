"""The static contract with exllamav3: the pinned release passes, and what differs is named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from glm53_server.engine.exl3_contract import (
    PINNED_FILES,
    PINNED_VERSION,
    UnsupportedExllamav3,
    check_static,
    find_differences,
)

ROOT = Path(__file__).resolve().parents[2]
STOCK = ROOT / ".cache" / "exllamav3" / "exllamav3"
MLP, SAFETENSORS, LINEAR = (
    "modules/block_sparse_mlp.py",
    "loader/safetensors.py",
    "modules/linear.py",
)


@pytest.fixture(scope="module")
def stock() -> Path:
    """exllamav3's own files as `make setup` puts them there; without them nothing is proven."""
    if not (STOCK / "version.py").is_file():
        pytest.fail(f"{STOCK} is not there: run `make setup`")
    return STOCK


@pytest.fixture
def copy(stock: Path, tmp_path: Path) -> Path:
    """The pinned files in a folder of their own."""
    for path in ("version.py", *PINNED_FILES):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(stock / path, tmp_path / path)
    return tmp_path


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text(encoding="utf-8")
    after = change(before)
    assert after != before, "the edit found nothing to change"
    path.write_text(after, encoding="utf-8")


def test_the_pinned_release_has_no_difference(stock: Path) -> None:
    assert find_differences(stock) == []
    check_static(stock)


def test_a_copy_of_the_pinned_files_is_as_good(copy: Path) -> None:
    assert find_differences(copy) == []


def test_another_version(copy: Path) -> None:
    edit(copy / "version.py", lambda text: text.replace(PINNED_VERSION, "1.5.2"))
    assert find_differences(copy) == [f"version is 1.5.2, pinned is {PINNED_VERSION}"]


def test_one_byte_more_in_every_file(copy: Path) -> None:
    for path in PINNED_FILES:
        with (copy / path).open("a") as file:
            file.write("\n")
    found = find_differences(copy)
    assert len(found) == len(PINNED_FILES)
    for difference, (path, digest) in zip(found, PINNED_FILES.items(), strict=True):
        assert difference.startswith(f"{path} has other contents (")
        assert digest[:8] in difference


@pytest.mark.parametrize("path", ["generator/job.py", MLP])
def test_a_missing_file_and_the_rest_still_compared(copy: Path, path: str) -> None:
    (copy / path).unlink()
    edit(copy / "version.py", lambda text: text.replace(PINNED_VERSION, "9.9"))
    found = find_differences(copy)
    assert f"{path} is missing" in found
    assert f"version is 9.9, pinned is {PINNED_VERSION}" in found
    assert not any("other contents" in difference for difference in found)


def test_a_renamed_parameter_of_get_tensor(copy: Path) -> None:
    edit(copy / SAFETENSORS, lambda text: re.sub(r"\bno_defer\b", "defer_not", text))
    found = find_differences(copy)
    assert len(found) == 2
    assert found[1].startswith("SafetensorsCollection.get_tensor takes (self, key, device, ")
    assert "defer_not" in found[1]


@pytest.mark.parametrize("method", ["routing_fn", "cpu_split_combine"])
@pytest.mark.parametrize("count", [0, 2])
def test_a_hooked_method_called_otherwise_than_once(copy: Path, method: str, count: int) -> None:
    def change(text: str) -> str:
        at = text.index("    def forward(", text.index("class BlockSparseMLP"))
        head, body = text[:at], text[at:]
        if count == 0:
            return head + body.replace(f".{method}(", f".{method}_renamed(", 1)
        first_line = re.search(rf"^( +).*\.{method}\(", body, re.MULTILINE)
        assert first_line is not None
        start = first_line.start()
        return head + body[:start] + f"{first_line[1]}self.{method}(1)\n" + body[start:]

    edit(copy / MLP, change)
    found = find_differences(copy)
    assert f"BlockSparseMLP.forward calls {method} {count} times, not once" in found
    assert len(found) == 2


def test_a_second_fetch_of_the_trellis(copy: Path) -> None:
    def change(text: str) -> str:
        at = text.index("    def load_exl3(")
        found = re.search(r"^( +).*get_tensor\([^\n]*\.trellis[^\n]*$", text[at:], re.MULTILINE)
        assert found is not None
        line = found.group(0)
        return text[:at] + text[at:].replace(line, f"{line}\n{line}", 1)

    edit(copy / LINEAR, change)
    assert "Linear.load_exl3 fetches the trellis 2 times, not once" in find_differences(copy)


@pytest.mark.parametrize(
    ("path", "content"),
    [(MLP, b"def broken(:\n"), (SAFETENSORS, b"\xff\xfe\x00"), (LINEAR, b"x = '\x00'")],
)
def test_a_file_that_is_not_python(copy: Path, path: str, content: bytes) -> None:
    (copy / path).write_bytes(content)
    found = find_differences(copy)
    assert any(difference.startswith(f"{path} has other contents") for difference in found)
    assert len(found) >= 2, "the hooks in that file cannot be there"


def test_an_empty_folder_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedExllamav3) as refused:
        check_static(tmp_path)
    assert len(refused.value.differences) == 1 + len(PINNED_FILES) + 4
    said = str(refused.value)
    assert "version is unknown" in said
    assert f"(and {len(refused.value.differences) - 5} more)" in said
    assert f"Install exactly exllamav3=={PINNED_VERSION}" in said


def test_everybody_pins_the_same_release() -> None:
    pin = f"exllamav3=={PINNED_VERSION}"
    assert f'"{pin}"' in (ROOT / "pyproject.toml").read_text()
    assert pin in (ROOT / "scripts" / "setup.sh").read_text()
