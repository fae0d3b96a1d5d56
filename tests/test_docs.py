"""What README, documentation and gallery say is so."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import operator
import re
import runpy
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))


def read(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(page: Path | str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL)


@pytest.fixture
def in_its_own_folder(tmp_path, monkeypatch):
    """An empty folder to work in, no progress bars, figures without windows, and settings as they were afterwards."""
    import matplotlib
    import matplotlib.pyplot as plt
    from tqdm.auto import tqdm

    monkeypatch.setattr("sgdlimits.progress.tqdm", lambda *items, **how: tqdm(*items, **how | {"disable": True}))
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    with plt.rc_context():
        yield
    plt.close("all")


FIRST_PAGES = ("README.md", "CONTRIBUTING.md", "start.md", "levels.md", "schema.md")
"""What a reader tries first; the code of other pages runs with --all."""
WITH_CODE = [
    pytest.param(page, id=page.name, marks=() if page.name in FIRST_PAGES else pytest.mark.full)
    for page in PAGES
    if blocks(page, "python")
]


@pytest.mark.parametrize("page", WITH_CODE)
@pytest.mark.usefixtures("in_its_own_folder")
def test_code_on_the_pages_runs(page, capsys):
    """All Python blocks of a page, in their order, as one program; it prints what the page says that it does.

    On the pages of the papers the expressions in tables are lines of that program too.
    """
    code = compile("\n".join(blocks(page, "python")), page.name, "exec", dont_inherit=True)  # annotations as they are there
    names = {"__name__": page.stem}
    exec(code, names)
    printed = capsys.readouterr().out
    for text in blocks(page, "text"):
        assert text in printed
    rows = [line for line in read(page).splitlines() if line.startswith("|") and page.stem.startswith("paper_")]
    for span in dict.fromkeys(span for row in rows for span in re.findall(r"`([^`]+)`", row)):
        if re.match(r"[a-z_]+[.(]", span):
            eval(span, names)


GROUPS = re.findall(r"minigallery::\n\n   \.\./examples/(\w+)\.py", read("examples/index.rst"))


@pytest.mark.full
@pytest.mark.parametrize("example", GROUPS)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.usefixtures("in_its_own_folder")
def test_first_scripts_of_the_gallery_run(example):
    """The first one of each group; `make docs` runs them all, and any warning is an error there."""
    runpy.run_path(str(ROOT / "examples" / f"{example}.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_gallery_scripts_are_short_and_introduced(example):
    text = read(example)
    title, line, *paragraphs = (ast.get_docstring(ast.parse(text)) or "").split("\n", 2)
    assert set(line) == {"="}
    assert len(line) == len(title)
    assert paragraphs
    assert len(text.splitlines()) < 40


def test_every_gallery_script_has_its_place_in_a_group():
    """Once among the thumbnails, and once in the table of contents, in the same order."""
    thumbnails, pages = (
        re.findall(line, read("examples/index.rst"), re.MULTILINE) for line in (r"/(plot_\w+)\.py$", r"^   (plot_\w+)$")
    )
    assert thumbnails == pages
    assert sorted(pages) == [example.stem for example in EXAMPLES]


def spans_of(page: Path) -> list[str]:
    """Code within the sentences and tables of a page."""
    return re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL))


def calls(span: str) -> Iterator[ast.Call]:
    """Calls of the package's functions, `sl.x(...)`, in a piece of code."""
    try:
        tree = ast.parse(span.replace("\n", " "), mode="eval")
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(r"sl(\.\w+)+", ast.unparse(node.func)):
            yield node


def commands(page: Path) -> list[str]:
    """The commands on a page: lines of shell blocks, and code within sentences unless it has placeholders in capitals."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    spans = [span for span in spans_of(page) if not re.search(r"\b[A-Z]{3,}\b|\.\.\.", span)]
    return [line for line in dict.fromkeys(lines + spans) if re.match(r"sgdlimits [a-z]", line)]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_on_the_pages_exist(page, tmp_path, monkeypatch):
    import click

    from sgdlimits.cli import main
    from sgdlimits.papers.figures import FIGURES

    monkeypatch.chdir(tmp_path)
    for words in (shlex.split(line, comments=True) for line in commands(page)):
        command: click.Command = main
        context, rest = click.Context(command, info_name="sgdlimits"), words[1:]
        while isinstance(command, click.Group) and rest:
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None
            command, context = found, click.Context(found, parent=context, info_name=name)
        for word in rest:
            if re.fullmatch(r"[\w-]+\.(nc|toml)", word):
                Path(word).touch()
        if rest and "--help" not in rest:
            command.make_context(name, list(rest), parent=context.parent)
        if words[1] == "figure":
            assert {word for word in rest if re.match(r"[a-z]", word)} <= {*FIGURES, "all"}, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_on_the_pages_exist(page):
    """Every dotted name `sl.x.y` on a page is one of the package, and calls within sentences have arguments that it takes."""
    import sgdlimits as sl

    for name in set(re.findall(r"\bsl((?:\.[A-Za-z_]\w*)+)", read(page))):
        thing = sl
        for part in name[1:].split("."):
            thing = getattr(thing, part)
    for node in (node for span in spans_of(page) for node in calls(span)):
        thing = operator.attrgetter(ast.unparse(node.func)[3:])(sl)
        inspect.signature(thing).bind_partial(*node.args, **{word.arg: word.value for word in node.keywords if word.arg})


@pytest.mark.full
@pytest.mark.usefixtures("in_its_own_folder")
@pytest.mark.filterwarnings("ignore")  # of threads and sockets of dask
def test_commands_on_the_page_of_sweeps_run():
    from click.testing import CliRunner

    from sgdlimits.cli import main

    (Path("ends.toml")).write_text(blocks("docs/sweeps.md", "toml")[0])
    lines = [line for block in blocks("docs/sweeps.md", "sh") for line in block.splitlines() if line.startswith("sgdlimits ")]
    assert len(lines) == 9
    for line in lines:
        if line.endswith(("--workers 2", "--shard 1/2")) and "--cluster" not in line:
            shutil.rmtree("ends")  # or there would be nothing to do
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        assert result.exit_code == 0, (line, result.output, result.stderr)
    assert Path("ends.png").stat().st_size > 1000
    assert Path("ends.zarr").is_dir()


def test_ten_lines_of_python_and_twelve_of_toml_make_a_diagram(tmp_path):
    from sgdlimits.run.sweeps.toml import read_spec

    (code,) = [block for block in blocks("README.md", "python") if "sl.sweep" in block]
    (text,) = blocks("README.md", "toml")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert len(text.splitlines()) <= 12
    (tmp_path / "x.toml").write_text(text)
    assert len(read_spec(tmp_path / "x.toml").design) == 16


def test_targets_in_the_readme_and_the_guide_exist():
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    for page in PAGES[:2]:
        assert set(re.findall(r"(?:`|^)make ([a-z]+)", read(page), re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_to_files(page):
    text = read(page)
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    paths = re.findall(r"`((?:src|tests|docs|examples|benchmarks|requirements)/[\w./]+\.\w+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_table_of_contents():
    """From the landing page through the pages of groups, each once; the order is that of "next"."""
    listed, left = [], ["index"]
    while left:
        page = ROOT / "docs" / f"{left.pop(0)}.md"
        tables = re.findall(r"```{toctree}\n(.*?)```", page.read_text(encoding="utf-8") if page.exists() else "", re.DOTALL)
        entries = [line for block in tables for line in block.splitlines() if line and not line.startswith(":")]
        listed, left = listed + entries, left + entries
    assert len(listed) == len(set(listed))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= set(listed)


def test_every_public_name_is_in_the_reference():
    stub = ast.parse(read("src/sgdlimits/__init__.pyi"))
    names = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    listed = set(read("docs/api.md").split())
    assert names
    assert names - listed == set()


def test_public_names_of_the_last_minor_version_are_still_there():
    """The promise of docs/citing.md: who renames or removes one keeps it, with a warning, for a minor version."""
    import sgdlimits as sl
    from sgdlimits.renamed import RENAMED

    assert set(read("tests/names_of_0_2.txt").split()) <= set(dir(sl)) | set(RENAMED)


def test_every_preset_is_in_the_reference_and_has_a_clock():
    from sgdlimits.problem.presets import PRESETS

    reference, convention = (read(f"docs/{page}.md") for page in ("api", "convention"))
    for name in PRESETS:
        assert f"presets.{name}" in reference
        assert f"`{name}`" in convention


def test_package_citation_and_changelog_name_the_same_version_and_day():
    import tomllib

    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    cited = dict(re.findall(r"^(version|date-released): (.*)$", read("CITATION.cff"), re.MULTILINE))
    newest = re.search(r"^## \[(.*)\] - (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest.groups() == (version, cited["date-released"])
    assert cited["version"] == version


def test_every_dependency_is_explained():
    import tomllib

    project = tomllib.loads(read("pyproject.toml"))
    needed = [*project["project"]["dependencies"], *(name for group in project["dependency-groups"].values() for name in group)]
    explained = set(re.findall(r"[\w-]+", read("docs/dependencies.md")))
    assert {re.split(r"[<>=\[ ]", name)[0] for name in needed} <= explained


def test_tests_named_on_the_pages_exist():
    known = {name for file in ROOT.glob("tests/**/*.py") for name in re.findall(r"^def (test_\w+)", read(file), re.MULTILINE)}
    for page in PAGES:
        assert set(re.findall(r"`(test_\w+)`", read(page))) <= known


def test_references_in_docstrings_have_the_numbers_of_the_bibliography():
    """A reference `.. [n] Author, ...`, `Author et al. [n]_` or `... and Author [n]_` names authors of entry n."""
    entries = dict(re.findall(r"^(\d+)\. ((?:.+\n?)+?)(?=^\d+\. |\Z)", read("docs/bibliography.md"), re.MULTILINE))
    for file in (ROOT / "src").glob("**/*.py"):
        listed = re.findall(r"\.\. \[(\d+)\] (\w+)", read(file))
        named = re.findall(r"(?:and ([A-Z]\w+)|(\w+) et al\.) \[(\d+)\]_", read(file))
        for number, author in [*listed, *((number, last or first) for last, first, number in named)]:
            assert author in entries[number], f"{file.name}: [{number}] {author}"


def test_entries_to_cite_are_those_of_the_bibliography_and_of_the_package():
    package = dict(re.findall(r"^[ -]*(\w+): (.+)$", read("CITATION.cff"), re.MULTILINE))
    known = " ".join([*read("docs/bibliography.md").split(), package["title"]]).lower()
    entries = "\n".join(blocks("docs/citing.md", "bibtex")).replace("{\\'e}", "é").replace("{\\'a}", "á")
    entries = re.sub(r"\n {9,}", " ", entries)  # one line for each field
    assert package["name"] in entries
    for title in re.findall(r"^  title += \{(.+)\},$", entries, re.MULTILINE):
        assert re.sub(r"[{}]", "", title).lower() in known
    for names in re.findall(r"^  author += \{(\w.+)\},$", entries, re.MULTILINE):
        assert all(" ".join(reversed(name.split(", "))).lower() in known for name in names.split(" and "))


def test_schema_page_names_all_that_a_dataset_holds():
    import sgdlimits as sl

    problem = sl.presets.phase_retrieval()
    dataset = sl.simulate(problem, sl.ODE(), sl.FixedInit(0.1), t_max=1, save=2)
    page = read("docs/schema.md")
    for name in (*dataset.variables, *dataset.dims, *dataset.attrs):
        assert f"`{name}`" in page, name


# --- the page on random numbers is a second engine ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_on_random_numbers():
    names: dict = {}
    exec("\n".join(blocks("docs/random.md", "python")), names)
    return names


def streams(seed, runs, step, count):
    """Normal and uniform numbers of the package's generator."""
    import equinox as eqx

    from sgdlimits.kernel.random import Purpose, Stream

    draw = eqx.filter_jit(lambda stream: (stream.normal(Purpose.STEP, count), stream.uniform(Purpose.CLASS, count)))
    return draw(Stream.from_seed(seed, runs, first=step))


@pytest.mark.parametrize(("seed", "step", "count"), [(0, 0, 1), (7, 3, 3), (2**40 + 5, 2**33 + 1, 4), (7, 3, 9)])
def test_streams_are_those_of_the_page(seed, step, count, page_on_random_numbers):
    normal, uniform = streams(seed, [2, 11], step, count)
    normals, uniforms = (page_on_random_numbers[name] for name in ("normals", "uniforms"))
    np.testing.assert_allclose(normal[0, :, 1], normals(seed, 11, step, 2, count), rtol=1e-12)
    np.testing.assert_array_equal(uniform[0, :, 1], uniforms(seed, 11, step, 4, count))


@pytest.mark.parametrize("rolled", [True, False])
def test_chi_squares_are_those_of_the_page(rolled, page_on_random_numbers):
    """Low degrees of freedom, of which several per cent of the first proposals are refused."""
    import equinox as eqx

    from sgdlimits.kernel.random import Purpose, Stream

    dofs = [0, 1, 2, 2, 3, 2, 50, 3000]
    stream = dataclasses.replace(Stream.from_seed(5, [4], steps=40), rolled=rolled)
    draw = eqx.filter_jit(lambda stream, dof: stream.chi_square(Purpose.CHI, dof))
    drawn = np.asarray(draw(stream, np.asarray(dofs, float)))[:, :, 0]
    expected = [page_on_random_numbers["chi_squares"](5, 4, step, 3, dofs) for step in range(40)]
    np.testing.assert_allclose(drawn, expected, rtol=1e-11)


def test_random_start_is_drawn_as_the_page_says(page_on_random_numbers):
    import sgdlimits as sl

    p, k, d, seed, run = 3, 2, 30, 8, 5
    normals, chi_squares, START, START_CHI = (
        page_on_random_numbers[name] for name in ("normals", "chi_squares", "START", "START_CHI")
    )
    numbers = normals(seed, run, 0, START, p * k + p * p)
    diagonal = np.sqrt(chi_squares(seed, run, 0, START_CHI, [d - k - j for j in range(p)]))
    T = np.tril(numbers[p * k :].reshape(p, p).T, -1) + np.diag(diagonal)
    W = np.concatenate([numbers[: p * k].reshape(p, k), T], axis=1)
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    start = sl.RandomInit(d).sample(sl.presets.quadratic_network(width=p, teachers=k), runs=run + 1, seed=seed)
    np.testing.assert_allclose(start.M[run], W[:, :k], rtol=1e-11)
    np.testing.assert_allclose(start.Q[run], W @ W.T, rtol=1e-11, atol=1e-12)
