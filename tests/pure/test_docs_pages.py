"""The documents against the code: generated pages are current, nothing is missing, nothing is dead."""

from __future__ import annotations

import functools
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from glm53_server.app import create_app
from glm53_server.engine import scripted
from glm53ctl import cli, doctor, env, errors
from glm53ctl.errors import EXIT_CODES, ChildExit, Glm53Error
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import CpuPlan, EngineName, ListenPlan, Mode, ModelPlan, Plan, ScriptPlan

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.fixture
def gen_docs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setattr(sys, "argv", ["gen_docs.py", "--check"])
    return importlib.import_module("gen_docs")


def test_generated_pages_and_figures_are_current(gen_docs, capsys):
    code = gen_docs.main()
    assert code == 0, f"run `make docs`: {capsys.readouterr().out}"


def test_a_page_that_is_not_current_is_named(gen_docs, capsys, monkeypatch):
    monkeypatch.setattr(gen_docs, "settings_page", lambda: "something else")
    assert gen_docs.main() == 1
    assert "docs/settings.md" in capsys.readouterr().out


def test_every_setting_and_variable_is_documented():
    page = text("settings.md")
    names = {name for row in env.rows() for name in (row.key, row.env)}
    missing = [
        n for n in names | set(env.OTHER_NAMES) | set(env.FOREIGN_NAMES) if f"`{n}`" not in page
    ]
    assert missing == []


def _below(kind: type[Glm53Error]) -> Iterator[type[Glm53Error]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _below(child)


def test_every_exit_code_and_error_is_documented():
    page = text("exit-codes.md")
    ours = [kind for kind in _below(Glm53Error) if kind.__module__ == errors.__name__]
    wanted = [f"| {number} |" for number, _ in EXIT_CODES]
    wanted += [f"| {int(item)} | `{item.name}` |" for item in ChildExit]
    wanted += [f"`{kind.__name__}`" for kind in ours] + [f"`{kind.error_id}`" for kind in ours]
    wanted += [f"| `{spec.id}` |" for spec in doctor.SPECS]
    assert len(ours) > 8
    assert [item for item in wanted if item not in page] == []


def test_every_error_id_in_the_sources_is_documented():
    sources = [*(ROOT / "glm53ctl").rglob("*.py"), *(ROOT / "server").rglob("*.py")]
    found = {
        error_id
        for path in sources
        for error_id in re.findall(r'error_id\s*=\s*"([A-Z]+-\d+)"', path.read_text("utf-8"))
    }
    assert len(found) > 20
    assert [item for item in sorted(found) if f"`{item}`" not in text("exit-codes.md")] == []


def test_every_verb_is_documented():
    page = text("cli.md")
    verbs = [verb for verb in cli.VERBS if verb in command_tree().commands]
    assert len(verbs) > 12
    assert [verb for verb in verbs if f"\n## glm53ctl {verb}\n" not in page] == []


def test_every_endpoint_is_documented():
    plan = Plan(
        mode=Mode.CPU, engine=EngineName.SCRIPTED, model=ModelPlan(str(tiny_checkpoint()), "tiny", 2048),
        listen=ListenPlan(), cpu=CpuPlan(1, (0,)), script=ScriptPlan(),
    )  # fmt: skip
    paths = create_app(scripted.load(plan, lambda *_: None), plan).openapi()["paths"]
    page = text("http-api.md")
    assert len(paths) > 12
    missing = [p for p in paths if p != "/" and p.replace("model_id", "id") not in page]
    assert missing == []


# Links


def _links(page: Path) -> list[str]:
    bare = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    pictures = re.findall(r'\bsrc(?:set)?="([^"]+)"', bare)
    return [*re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", bare), *pictures]


def _anchors(page: Path) -> set[str]:
    """The anchors that headings get on the usual hosts."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_every_internal_link_resolves(page):
    dead = []
    for link in _links(page):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_is_reached_from_the_readme():
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or not page.is_file():
            continue
        seen.add(page)
        files = (link.partition("#")[0] for link in _links(page) if not re.match(r"[a-z]+:", link))
        todo += [(page.parent / name).resolve() for name in files if name.endswith(".md")]
    lost = [page for page in PAGES if page not in seen and page.parent.name != "adr"]
    assert lost == []


@each_page
def test_pages_name_no_place_of_one_machine(page):
    assert re.findall(r"/(?:root|work|home/\w+)/\S*", page.read_text(encoding="utf-8")) == []


# Commands

OPTIONS_ANYWHERE = {"--version", "--debug", "--no-color", "-h", "--help", "--install-completion"}


@functools.cache
def command_tree():
    return typer.main.get_command(cli.build())


def command_lines(page: Path) -> Iterator[str]:
    """Lines of shell blocks and inline code that call glm53ctl or make."""
    body = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:sh|console|bash)\n(.*?)^```", body, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.removeprefix("$ ").strip()
    yield from re.findall(r"`((?:glm53ctl|make) [^`\n]+)`", _without_blocks(body))


def _without_blocks(body: str) -> str:
    return re.sub(r"^```.*?^```", "", body, flags=re.MULTILINE | re.DOTALL)


def complaints(line: str) -> Iterator[str]:
    """What a command line names that does not exist."""
    if not line.startswith(("glm53ctl ", "make ")):
        return
    words = shlex.split(line, comments=True)
    for operator in ("|", "||", "&&", ";", ">", "2>&1", "&"):
        words = words[: words.index(operator)] if operator in words else words
    if words[:1] == ["make"]:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
        yield from (word for word in words[1:] if "=" not in word and word not in targets)
    if words[:1] == ["glm53ctl"]:
        yield from _unknown_words(words[1:])


def _unknown_words(words: list[str]) -> Iterator[str]:
    command, value_follows = command_tree(), False
    for word in words:
        name, equals, _ = word.partition("=")
        if value_follows:
            value_follows = False
        elif name.startswith("-"):
            param = next((p for p in command.params if name in p.opts), None)
            if param is None and name not in OPTIONS_ANYWHERE:
                yield f"{command.name}: {name}"
            value_follows = param is not None and not param.is_flag and not equals
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        elif inner := getattr(command, "commands", None):
            yield from (choice for choice in word.split("|") if choice not in inner)
            return


@each_page
def test_every_command_in_a_page_exists(page):
    wrong = {line: found for line in command_lines(page) if (found := list(complaints(line)))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("glm53ctl upp --mode auto", ["upp"]),
        ("glm53ctl up --moed auto", ["up: --moed"]),
        ("glm53ctl models pul", ["pul"]),
        ("glm53ctl bench --compare last panel", []),
        ("make tset", ["tset"]),
        ("make up MODEL=tiny", []),
        ("glm53ctl config set vram.reserve_gib 2  # more --words", []),
        ("glm53ctl logs -n 5 | grep --colour x", []),
    ],
)
def test_a_wrong_command_would_be_found(line, wrong):
    assert list(complaints(line)) == wrong


def test_the_readme_names_commands_that_make_knows():
    lines = list(command_lines(ROOT / "README.md"))
    assert {"make up", "make test"} <= set(lines)
