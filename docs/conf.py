"""Sphinx configuration. The built pages load nothing from the network."""

import dataclasses
import inspect
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from sphinx.util.inspect import stringify_signature

import sgdlimits.analysis.conserved
import sgdlimits.analysis.landscape
import sgdlimits.analysis.plot
import sgdlimits.expectation.gaussian
import sgdlimits.problem.presets
from sgdlimits.progress import Bar

# So that autosummary finds them under their public names.
sys.modules["sgdlimits.presets"] = sgdlimits.problem.presets
sys.modules["sgdlimits.landscape"] = sgdlimits.analysis.landscape
sys.modules["sgdlimits.conserved"] = sgdlimits.analysis.conserved
sys.modules["sgdlimits.plot"] = sgdlimits.analysis.plot
sys.modules["sgdlimits.gaussian"] = sgdlimits.expectation.gaussian
usual = Bar.__init__
Bar.__init__ = lambda self, *items, **how: usual(self, *items, **how | {"disable": True})  # no bars in the gallery's pages

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
GALLERY = HERE / "auto_examples"
WIDE = ["audit", "errata", *(f"{GALLERY.name}/{path.stem}" for path in EXAMPLES.glob("plot_*.py"))]
"""Pages with long lines of code or wide tables, which use the space of the page contents."""

project = "sgdlimits"
author = "The sgdlimits developers"
copyright = author
release = version = installed_version("sgdlimits")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
    "myst_nb",
]
exclude_patterns = ["_build", "auto_examples/**.ipynb"]
templates_path = ["_templates"]
default_role = "py:obj"
maximum_signature_line_length = 72

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_attr_annotations = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Returns"]  # sentences, whose first line is no type

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
mathjax_path = "mathjax/tex-chtml.js"

html_theme = "pydata_sphinx_theme"
html_title = "sgdlimits"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_context = {"default_mode": "auto"}
html_show_sourcelink = True
html_copy_source = True
html_sourcelink_suffix = ""
html_show_search_summary = False  # they would be fetched, which browsers refuse for files
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": {"**": ["page-toc", "sourcelink"], **{page: [] for page in WIDE}},
    "pygments_dark_style": "a11y-dark",
    "footer_start": ["copyright"],
    "footer_end": [],
}

if any(EXAMPLES.glob("plot_*.py")):
    from sphinx_gallery.sorting import ExplicitOrder

    extensions.append("sphinx_gallery.gen_gallery")
    sphinx_gallery_conf = {
        "examples_dirs": str(EXAMPLES),
        "gallery_dirs": GALLERY.name,
        "filename_pattern": r"plot_",
        "ignore_pattern": r"(^|/)(?!plot_)[^/]*\.py$",
        "copyfile_regex": r"index\.rst",  # groups and order, for pages and thumbnails
        "minigallery_sort_order": ExplicitOrder(
            [EXAMPLES / name for name in re.findall(r"plot_\w+\.py", (EXAMPLES / "index.rst").read_text())]
        ),
        "backreferences_dir": f"{GALLERY.name}/backreferences",
        "download_all_examples": False,
        "show_signature": False,
        "write_computation_times": False,
    }
else:
    GALLERY.mkdir(exist_ok=True)
    (GALLERY / "index.rst").write_text("Gallery\n=======\n\nThe examples folder holds no script yet.\n")


def readable(app, what, name, obj, options, lines):
    """Convert the package's docstrings: references numbered as in the bibliography, parameters as "name : meaning"."""
    text = re.sub(
        r"^([ ]*)\.\. \[(\d+)\] (.*(?:\n\1[ ]+\S.*)*)",
        lambda found: f"{found[1]}[{found[2]}] {' '.join(found[3].split())}",
        "\n".join(lines),
        flags=re.MULTILINE,
    )
    text = re.sub(r"\[(\d+)\]_", r"[\1]", text)
    text = re.sub(r"\bdocs/(\w+)\.md\b", r":doc:`/\1`", text)
    text = re.sub(
        r"^((?:Parameters|Raises)\n-+\n)((?:.+\n?)*)",
        lambda found: found[1] + re.sub(r"^(\S[^:]*?) : (.*)", r"\1\n    \2", found[2], flags=re.MULTILINE),
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(
        r"^(Parameters\n-+\n(?:.+\n)+)\n(?!.+\n---)(?=(\S+))",
        lambda found: f"{found[1]}\n" + ("Examples\n--------\n" if found[2].startswith(">>>") else "Notes\n-----\n"),
        text,
        flags=re.MULTILINE,
    )
    lines[:] = text.split("\n")


def typed(app, what, name, obj, options, signature, returns):
    """Annotate constructors that convert their arguments with the types of the resulting fields."""
    if what != "class" or not dataclasses.is_dataclass(obj) or not signature:
        return None
    number, empty = r"Float\[Array, (''|\"\")\] \| float", inspect.Parameter.empty
    fields = {field.name: re.sub(number, "float", str(field.type)) for field in dataclasses.fields(obj)}
    how, said = inspect.signature(obj), []
    for parameter in how.parameters.values():
        if parameter.annotation in (empty, Any, "Any"):
            known = fields.get(parameter.name, "Any")
            parameter = parameter.replace(annotation=empty if known == "Any" else known)
        said.append(parameter)
    if said == list(how.parameters.values()):
        return None
    return stringify_signature(how.replace(parameters=said, return_annotation=empty), unqualified_typehints=True), returns


def without_ways_back(app, pagename, templatename, context, doctree):
    """Remove links from sources to the reference, which are broken if a name is public in several modules."""
    if pagename.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


def setup(app):
    app.connect("autodoc-process-signature", typed)
    app.connect("html-page-context", without_ways_back)
    app.connect("autodoc-process-docstring", readable, priority=400)
