"""Run a notebook of notebooks/ and leave results/notebooks/<name>.ipynb and .html, the same bytes each time.

papermill executes into a temporary file, nbstripout keeps the outputs and drops what differs between two runs,
nbconvert writes a page that loads nothing from anywhere. Only loopback sockets are used.
"""

from __future__ import annotations

import html
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat

import multihop
from multihop import guard, jsonl
from multihop.errors import ConfigError, DataError, MultihopError
from multihop.report.load import Report
from multihop.report.page import problems

KERNEL = "python3"
EXTRA_KEYS = (
    "metadata.papermill", "cell.metadata.papermill", "cell.metadata.execution", "metadata.language_info.version",
)  # fmt: skip
"""What nbstripout drops: times and paths of this run, and the patch release of Python."""
SHORTEST_QUOTE = 40
"""A passage's sentence of at least so many characters in a rendered notebook counts as its text."""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1250px; margin: 2em auto; padding: 0 1.2em; }}
pre {{ font: 12.5px/1.45 ui-monospace, monospace; margin: 0; white-space: pre-wrap; }}
.input_area {{ background: #f6f6f6; border-left: 3px solid #d9d9d9; padding: .5em .8em; margin: .6em 0; }}
.output_area {{ overflow-x: auto; margin: .4em 0 1.2em; }}
.prompt, .anchor-link {{ display: none; }}
table {{ border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25em .6em; text-align: right; vertical-align: top; border-bottom: 1px solid #e6e6e6; }}
th, td.words {{ text-align: left; }}
th {{ font-weight: 600; }}
small {{ color: #6b6b6b; }}
img {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def render(root: Path | str, name: str, parameters: dict[str, Any] | None = None) -> Path:
    """Render notebooks/<name>.ipynb of the project at ``root``; returns the path of the rendered notebook.

    ``parameters`` go to the cell tagged so. Raises ConfigError for an unknown notebook, parameter or a missing kernel,
    MultihopError where a cell fails (nothing is written then), DataError where a benchmark's passage would be shown.
    """
    root = Path(root).resolve()
    known = sorted(p.stem for p in (root / "notebooks").glob("*.ipynb"))
    if name not in known:  # so that no name leads out of the folder
        raise ConfigError(f"{name}.ipynb: no such notebook in notebooks/; known: {', '.join(known) or 'none'}")
    source = root / "notebooks" / f"{name}.ipynb"
    _check_kernel()
    _check_parameters(source, parameters or {})
    notebook = normalise(_execute(source, parameters or {}, root))
    forbid_passages(Report(root), name, notebook)
    page = to_html(notebook, name)
    target = root / "results/notebooks" / f"{name}.ipynb"
    jsonl.write_text(target, nbformat.writes(notebook) + "\n")
    jsonl.write_text(target.with_suffix(".html"), page)
    return target


def _check_kernel() -> None:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        KernelSpecManager().get_kernel_spec(KERNEL)
    except NoSuchKernel:
        raise ConfigError(
            f"no Jupyter kernel {KERNEL!r} for {sys.executable}; run `{Path(sys.executable).name} -m ipykernel install "
            f"--sys-prefix --name {KERNEL}` in this environment"
        ) from None


def _check_parameters(source: Path, parameters: dict[str, Any]) -> None:
    """papermill itself only warns of a misspelt name."""
    import papermill

    known = papermill.inspect_notebook(str(source))
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ConfigError(f"{source.name}: unknown parameter {', '.join(unknown)}; known: {', '.join(known) or 'none'}")


def _execute(source: Path, parameters: dict[str, Any], root: Path) -> nbformat.NotebookNode:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    with tempfile.TemporaryDirectory() as folder, _environment(Path(folder)):
        try:
            return papermill.execute_notebook(
                str(source),
                str(Path(folder) / source.name),
                parameters=parameters,
                kernel_name=KERNEL,
                cwd=str(root),
                progress_bar=False,
                # Else the kernel warns at each start that loopback is not encrypted.
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
            )
        except PapermillExecutionError as e:
            raise MultihopError(f"{source.name}, code cell {e.exec_count}: {e.ename}: {e.evalue}") from e


@contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """What the kernel inherits: a fixed hash seed, no user's start-up files, this very package, no key."""
    package = str(Path(multihop.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = {
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(paths),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    before = dict(os.environ)
    for key in before.keys() - guard.public_environment().keys():
        del os.environ[key]
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Outputs stay, what differs from run to run goes. Standard error, such as a font cache being built, is passed on
    to ours instead of kept."""
    from nbstripout import strip_output

    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                print(output["text"], file=sys.stderr, end="")
    return strip_output(
        notebook,
        keep_output=True,
        keep_count=True,
        keep_id=False,
        extra_keys=list(EXTRA_KEYS),
        drop_output_types={"stream:stderr"},
    )


def forbid_passages(report: Report, name: str, notebook: nbformat.NotebookNode) -> None:
    """Raises DataError if an output holds a sentence of a passage that is not of the generated world: rendered
    notebooks are in git, a benchmark's text must never be."""
    if report.is_demo:
        return
    shown = _flat("\n".join(_texts(notebook)))
    for dataset in report.datasets:
        path = report.root / "data/prepared" / dataset / "passages.jsonl"
        for row in jsonl.read(path) if path.is_file() else ():
            sentences = [s for s in re.split(r"(?<=[.!?])\s+", row["text"]) if len(s) >= SHORTEST_QUOTE]
            if any(_flat(s) in shown for s in sentences):
                raise DataError(
                    f"notebook {name}: an output shows text of passage {row['id']} of {dataset}; "
                    "rendered notebooks are kept in git: show ids, titles and questions only"
                )


def _texts(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """All text of the outputs, markup undone."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("text", "")
            for kind, data in output.get("data", {}).items():
                if isinstance(data, str) and not kind.startswith("image/"):
                    yield html.unescape(data)


def _flat(text: str) -> str:
    return " ".join(text.split())


def to_html(notebook: nbformat.NotebookNode, title: str) -> str:
    """One page that needs no other file. Raises MultihopError if something in it would run or be loaded."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="basic", exclude_anchor_links=True)
    exporter.log.setLevel("ERROR")
    body, _ = exporter.from_notebook_node(notebook)
    page = _PAGE.format(title=html.escape(title), body="\n".join(line.rstrip() for line in body.splitlines()))
    if found := problems(page):
        raise MultihopError(f"notebook {title}: the page would run or load {found[0][:200]!r}; embed what it shows")
    return page
