"""Sphinx configuration. The built pages load nothing from the network."""

from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
GALLERY = HERE / "auto_examples"

project = "sgdlimits"
author = "The sgdlimits developers"
copyright = author
release = version = installed_version("sgdlimits")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx-mathjax-offline",
    "myst_nb",
]
exclude_patterns = ["_build", "auto_examples/**.ipynb"]
templates_path: list[str] = []

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_rtype = False

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
mathjax_path = "mathjax/tex-chtml.js"

html_theme = "pydata_sphinx_theme"
html_title = "sgdlimits"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}

if any(EXAMPLES.glob("plot_*.py")):
    extensions.append("sphinx_gallery.gen_gallery")
    sphinx_gallery_conf = {
        "examples_dirs": str(EXAMPLES),
        "gallery_dirs": GALLERY.name,
        "filename_pattern": r"plot_",
        "ignore_pattern": r"(^|/)(?!plot_)[^/]*\.py$",
        "within_subsection_order": "FileNameSortKey",
        "download_all_examples": False,
        "show_signature": False,
        "write_computation_times": False,
    }
else:
    GALLERY.mkdir(exist_ok=True)
    (GALLERY / "index.rst").write_text("Gallery\n=======\n\nThe examples folder holds no script yet.\n")
