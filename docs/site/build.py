"""Build the documentation as a site of static files: `make site`.

Pages are staged in one folder: README.md, docs/, the tutorials (notebooks, which are executed), the READMEs
of the examples, and a reference made from the code. Links between files of the repository become links
between pages; links to files without a page become plain text. The built pages are then checked: every link
and anchor resolves, and nothing is loaded from another host.

    python docs/site/build.py build/site [--without-notebooks]
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
NOTEBOOKS = ROOT / "examples" / "notebooks"

TUTORIALS = (
    "first_simulation", "first_federation", "own_algorithm", "private_training", "tune_and_compare",
)  # fmt: skip
SECTIONS: dict[str, tuple[str, ...]] = {
    "How-to": (
        "python", "data", "own-algorithms", "other-models", "analytics", "results", "operating", "multi-gpu", "flower",
    ),
    "Explanation": (
        "simulation", "virtual-time", "asynchronous", "differential-privacy", "secure-aggregation", "compression",
        "robust-aggregation", "security", "architecture",
    ),
    "Reference": ("api", "commands", "configuration", "algorithms", "wire"),
}  # fmt: skip
"""The pages of docs/ by section; a page in none of them stops the build."""

API: dict[str, tuple[str, ...]] = {
    "Run": (
        "simulate", "resume", "load_run", "compare", "sweep", "connect", "Run", "Comparison", "Federation", "RemoteRun",
    ),
    "Describe a task": ("Task", "Site", "ClientData", "cross_entropy", "accuracy", "auroc", "f1", "calibration_error",
        "AdditiveMetric", "datasets"),
    "Choose an algorithm": (
        "fedavg", "fedprox", "scaffold", "feddyn", "fednova", "fedlion", "newton", "qfedavg", "afl", "fedbuff",
        "fedasync", "fedbn", "fedper", "fedrep", "ditto", "ifca", "lora", "xgb_bagging", "xgb_cyclic", "analytics",
    ),
    "Write an algorithm": (
        "builder", "averaging", "Bounds", "Algorithm", "State", "Aggregate", "MeanAggregator", "LocalAlgorithm",
        "LocalRound", "Answer", "TrainingStep", "TrainingBench", "Geometry",
    ),
    "Settings": (
        "Training", "Evaluation", "Selection", "Robust", "Compression", "Privacy", "DifferentialPrivacy",
        "SecureAggregation", "Simulation", "Tracking", "Config", "load_config", "make_config",
    ),
    "Flower's engine": ("client_app", "server_app", "FederatedStrategy"),
    "Errors": ("MeadowError",),
}  # fmt: skip
"""The public names by chapter of the reference; together they are `meadow.__all__`."""

LINK = re.compile(r"(?<!!)\[([^\]\n]+(?:\n[^\]\n]+)*)\]\(([^)\s]+)\)")
LABEL = re.compile(r"^([A-Z][A-Za-z ,]{2,30}):(?: +(.*))?$")
ENTRY = re.compile(r"^([A-Za-z_*][\w.*, ]*): (.*)$")
SIGNATURE_CHARS = 96
LOADING = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
}
LOADED_RELATIONS = {
    "stylesheet",
    "icon",
    "shortcut icon",
    "preload",
    "modulepreload",
    "prefetch",
    "manifest",
}
REMOTE_CSS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])(?:https?:)?//", re.IGNORECASE)


def pages(*, notebooks: bool = True) -> dict[Path, str]:
    """Return the staged name of every file of the repository that has a page."""
    docs = ROOT / "docs"
    made = {page: page.name for page in docs.glob("*.md") if page.name != "README.md"}
    known = {f"{name}.md" for names in SECTIONS.values() for name in names}
    if unknown := set(made.values()) - known:
        raise SystemExit(
            f"docs/{min(unknown)} is in no section of docs/site/build.py; add it to one"
        )
    made |= {page: f"decisions/{page.name}" for page in (docs / "decisions").glob("*.md")}
    made |= {page: f"coming-from/{page.name}" for page in (docs / "coming-from").glob("*.md")}
    if notebooks:
        made |= {NOTEBOOKS / f"{name}.ipynb": f"tutorials/{name}.ipynb" for name in TUTORIALS}
    for page in (ROOT / "examples").rglob("README.md"):
        made[page] = (
            "examples/"
            + "-".join(page.parent.relative_to(ROOT / "examples").parts or ("index",))
            + ".md"
        )
    made[ROOT / "README.md"] = "index.md"
    made[ROOT / "benchmarks" / "README.md"] = "benchmarks.md"
    made[ROOT / "CONTRIBUTING.md"] = "contributing.md"
    made[ROOT / "SECURITY.md"] = "report-a-vulnerability.md"
    return {source: target for source, target in made.items() if source.is_file()}


def relinked(text: str, source: Path, staged: dict[Path, str]) -> str:
    """Return a page's text with its links between files as links between pages.

    Raises:
        SystemExit: a link leads to a file that there is not.
    """
    targets = {**staged, ROOT / "docs" / "README.md": "index.md"}
    here = Path(staged[source]).parent

    def one(found: re.Match[str]) -> str:
        words, link = found[1], found[2]
        parts = urlsplit(link)
        if parts.scheme or not parts.path:
            return found[0]
        file = (source.parent / unquote(parts.path)).resolve()
        if not file.exists():
            raise SystemExit(f"{source.relative_to(ROOT)}: {link} leads nowhere")
        file = file / "README.md" if (file / "README.md") in targets else file
        if file not in targets:
            picture = file.suffix == ".png" and file.is_relative_to(ROOT / "docs")
            return found[0] if picture else words
        anchor = f"#{parts.fragment}" if parts.fragment and targets[file] != "index.md" else ""
        return f"[{words}]({os.path.relpath(targets[file], here)}{anchor})"

    return LINK.sub(one, text)


def stage(folder: Path, *, notebooks: bool) -> None:
    """Write all pages into a new folder."""
    staged = pages(notebooks=notebooks)
    for source, target in staged.items():
        file = folder / target
        file.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".ipynb":
            shutil.copy(source, file)
        else:
            file.write_text(relinked(source.read_text(), source, staged))
    shutil.copytree(ROOT / "docs" / "pictures", folder / "pictures")
    (folder / "api.md").write_text(api_page())
    (folder / "commands.md").write_text(commands_page())
    (folder / "wire.md").write_text(wire_page())
    with (folder / "index.md").open("a") as index:
        index.writelines(_contents(folder, staged, notebooks))


def _contents(folder: Path, staged: dict[Path, str], notebooks: bool) -> Iterator[str]:
    names = sorted(staged.values())
    if notebooks:
        yield _tree("Tutorials", [f"tutorials/{name}" for name in TUTORIALS])
    for title, chosen in SECTIONS.items():
        yield _tree(title, [name for name in chosen if (folder / f"{name}.md").exists()])
        if title == "How-to":
            yield _tree("Coming from", [n[:-3] for n in names if n.startswith("coming-from/")])
    yield _tree("Examples", [name[:-3] for name in names if name.startswith("examples/")])
    yield _tree("Project", ["contributing", "report-a-vulnerability", "benchmarks"])
    yield _tree("Decisions", [name[:-3] for name in names if name.startswith("decisions/")])


def _tree(caption: str, entries: list[str]) -> str:
    if not entries:
        return ""
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(entries) + "\n```\n"


def api_page() -> str:
    """Return the reference of the Python API, from signatures and docstrings.

    Raises:
        SystemExit: a public name is in no chapter.
    """
    import meadow

    listed = [name for names in API.values() for name in names]
    if wrong := set(listed) ^ set(meadow.__all__):
        raise SystemExit(f"API in docs/site/build.py and meadow.__all__ differ in {sorted(wrong)}")
    text = "# Python API\n\nEverything that `import meadow` gives.\n"
    for chapter, names in API.items():
        text += f"\n## {chapter}\n"
        for name in names:
            text += "".join(_described(f"meadow.{name}", getattr(meadow, name), "###"))
    return text


def _described(name: str, item: Any, level: str) -> Iterator[str]:
    """Yield the text about a public name, and below it about its own names."""
    yield f"\n{level} {name}\n\n"
    if inspect.isroutine(item) or inspect.isclass(item):
        yield f"```python\n{_signature(name.rpartition('.')[2], item)}\n```\n\n"
    yield _markdown(inspect.getdoc(item) or "")
    inner: dict[str, Any] = {}
    if inspect.ismodule(item):
        inner = {each: getattr(item, each) for each in item.__all__}
    elif inspect.isclass(item):
        inner = {each: getattr(item, each) for each in vars(item) if not each.startswith("_")}
    for each, value in inner.items():
        if (
            inspect.isroutine(value) or isinstance(value, property) or inspect.ismodule(item)
        ) and value.__doc__:
            yield from _described(f"{name}.{each}", value, f"{level}#")


def _signature(name: str, item: Any) -> str:
    try:
        signature = inspect.signature(item)
    except (TypeError, ValueError):
        return f"{name}(...)"
    text = f"{name}{signature}".replace("'", "")
    if len(text) <= SIGNATURE_CHARS:
        return text
    ends = signature.return_annotation
    result = "" if ends is signature.empty else f" -> {ends}".replace("'", "")
    params, lines, named = list(signature.parameters.values()), [], False
    for param in params:
        if param.kind is param.KEYWORD_ONLY and not named:
            lines.append("*")
            named = True
        lines.append(str(param).replace("'", ""))
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f"){result}"


def _markdown(doc: str) -> str:
    """Return a docstring as Markdown: labelled sections become bold labels and lists."""
    made: list[str] = []
    entries = False
    for line in doc.splitlines():
        found = LABEL.match(line)
        if found:
            entries = not found[2]
            made += ["", f"**{found[1]}**{': ' + found[2] if found[2] else ''}", *[""] * entries]
        elif line.startswith("    ") and not line.lstrip().startswith("|"):
            inner = line[4:]
            entry = ENTRY.match(inner) if entries else None
            made.append(
                f"- `{entry[1]}`: {entry[2]}"
                if entry
                else f"  {inner.strip()}"
                if entries
                else inner
            )
        else:
            entries = entries and not line.strip()
            made.append(line)
    return "\n".join(made).strip() + "\n"


def commands_page() -> str:
    """Return the reference of the commands, from what `--help` knows."""
    import click
    import typer

    from meadow.cli.main import app

    def described(command: Any, path: str) -> Iterator[str]:
        if isinstance(command, click.Group) or hasattr(command, "commands"):
            for name in sorted(command.commands):
                yield from described(command.commands[name], f"{path} {name}")
            return
        yield f"\n## {path}\n\n{(command.help or '').strip()}\n"
        context = click.Context(command, info_name=path)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        yield f"\n```text\n{usage}\n```\n"
        rows = [
            _row(param, context) for param in command.params if not getattr(param, "hidden", False)
        ]
        if rows:
            yield "\n| argument or option | meaning | default |\n|---|---|---|\n" + "".join(rows)

    return "# Commands\n\nAs `meadow COMMAND --help` shows them.\n" + "".join(
        described(typer.main.get_command(app), "meadow")
    )


def _row(param: Any, context: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.param_type_name == "argument":
        names = f"`{param.make_metavar(context)}`"
    default = param.default
    plain = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    shown = f"`{getattr(default, 'value', default)}`" if plain and str(default) else ""
    text = (getattr(param, "help", None) or "").replace("|", "\\|").replace("\n", " ")
    return f"| {names} | {text} | {'required' if param.required else shown} |\n"


def wire_page() -> str:
    """Return the reference of the wire: the definition, and the bound of every field."""
    from meadow.transport import fields, protocol

    text = (
        f"# Wire\n\nProtocol {protocol.PROTOCOL_VERSION}: gRPC over mutual TLS. Every field of a message between a server "
        "and an agent is checked against its bound before the message is used; [security](security.md) has the "
        "values of the limits.\n\n## Bounds\n\n| message | field | bound |\n|---|---|---|\n"
    )
    for message, rules in fields.RULES.items():
        for field, rule in rules.items():
            text += f"| `{message}` | `{field}` | {_bound(rule)} |\n"
    proto = (ROOT / "transport" / "fleet.proto").read_text()
    return f"{text}\n## fleet.proto\n\n```protobuf\n{proto}```\n"


def _bound(rule: Any) -> str:
    from meadow.transport import fields

    if isinstance(rule, fields.Length):
        return f"length {rule.least:,} to {rule.most:,}"
    if isinstance(rule, fields.Range):
        return f"{rule.least:g} to {rule.most:g}"
    return "its own fields" if isinstance(rule, fields.Nested) else f"checked in {rule.by}"


class _Links(HTMLParser):
    """The links, the anchors and the loaded resources of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of a tag."""
        given = {name: value or "" for name, value in attrs}
        if anchor := given.get("id") or (given.get("name") if tag == "a" else None):
            self.anchors.add(anchor)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADING and given.get(LOADING[tag]):
            self.loaded.append(given[LOADING[tag]])
        if tag == "link" and given.get("rel", "").lower() in LOADED_RELATIONS:
            self.loaded.append(given.get("href", ""))


def faults(site: Path) -> Iterator[str]:
    """Yield what is wrong with a built site: links that lead nowhere, and what other hosts would send."""
    read = {page: _Links(page.read_text()) for page in sorted(site.rglob("*.html"))}
    for page, found in read.items():
        name = page.relative_to(site)
        for resource in found.loaded:
            if urlsplit(resource).netloc:
                yield f"{name} loads {resource}"
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.exists():
                yield f"{name} links to {link}, which there is not"
            elif (
                parts.fragment
                and target in read
                and unquote(parts.fragment) not in read[target].anchors
            ):
                yield f"{name} links to {link}, an anchor that there is not"
    for sheet in site.rglob("*.css"):
        if REMOTE_CSS.search(sheet.read_text()):
            yield f"{sheet.relative_to(site)} loads from another host"


def main() -> None:
    """Build and check the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--without-notebooks", action="store_true", help="do not run the tutorials")
    options = parser.parse_args()
    site: Path = options.out.resolve()
    staged = site.with_name(f"{site.name}-pages")
    for folder in (site, staged):
        shutil.rmtree(folder, ignore_errors=True)
    staged.mkdir(parents=True)
    stage(staged, notebooks=not options.without_notebooks)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["-c", str(HERE), "-d", str(staged / ".doctrees"), str(staged), str(site)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit("the site was not built; see above")
    if found := list(faults(site)):
        raise SystemExit("\n".join(found))
    print(f"the site is {site}/index.html")


if __name__ == "__main__":
    main()
