"""The settings of Sphinx for the site. `make.py` stages the pages."""

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import make  # noqa: E402

project = "routelaws"
author = "The authors of routelaws"
copyright = "the authors of routelaws, Apache 2.0"
version = release = make.version()

extensions = ["myst_parser", "sphinx_copybutton", "formulas"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
highlight_language = "none"  # an indented block is a formula, a table or a command, not Python
html_math_renderer = "mathml"
add_module_names = False
maximum_signature_line_length = 40
python_use_unqualified_type_names = True
suppress_warnings = ["ref.python"]  # two packages have types of the same name; `twins.py` links known types
toc_object_entries = False  # contents list only headings

html_theme = "pydata_sphinx_theme"
html_title = "routelaws"
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}  # light or dark, from the reader's system
html_copy_source = False
html_show_sourcelink = False
copybutton_selector = "div.highlight-python pre, div.highlight-none pre, div.highlight-bash pre"  # no printed output
html_search_scorer = str(HERE / "search_scorer.js")
html_use_index = False  # readers find names by search
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navigation_depth": 3,
    "show_nav_level": 1,
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "footer_start": ["copyright"],
    "footer_center": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "back_to_top_button": True,
    "show_prev_next": True,
}
NO_SIDEBAR = ("index", "tutorials/index", "lab/**", "source/**", "reference/index", "conformance/index")
html_sidebars = dict.fromkeys(NO_SIDEBAR, [])
# On the left, so that code can be 120 columns wide: the sections of the lesson, then all lessons.
html_sidebars["tutorials/[0-9]*"] = ["page-toc", "sidebar-nav-bs"]


def number_lines(app, doctree):
    """Number the lines of each source page, and add a link target such as line-12 to each line."""
    if app.env.docname.startswith("source/"):
        for node in doctree.findall(lambda node: node.tagname == "literal_block"):
            node["linenos"] = True
            node["highlight_args"] = {"lineanchors": "line", "anchorlinenos": True}


def setup(app):
    app.add_lexer("csv", TextLexer)
    app.connect("doctree-read", number_lines)
