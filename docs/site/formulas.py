"""A Sphinx extension that converts formulas to MathML at build time, so that pages need no script.

math-core converts LaTeX to MathML, and recent browsers show MathML. Browsers need a mathematical font to stretch
brackets and place limits. The font is STIX Two Math from the package ziamath.
"""

import importlib.util
from pathlib import Path

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.util import logging
from sphinx.util.fileutil import copy_asset

LOG = logging.getLogger(__name__)
CONVERTER = LatexToMathML()


def font() -> Path:
    return Path(importlib.util.find_spec("ziamath").origin).parent / "fonts/STIXTwoMath-Regular.ttf"


def mathml(node, display: bool) -> str:
    try:
        return CONVERTER.convert_with_local_state(node.astext(), displaystyle=display)
    except LatexError as error:
        LOG.warning("no formula: %s in %r", error, node.astext(), location=node)
        return ""


def inline(translator, node):
    translator.body.append(mathml(node, display=False))
    raise nodes.SkipNode


def block(translator, node):
    translator.body.append(f'<div class="formula">{mathml(node, display=True)}</div>')
    raise nodes.SkipNode


def copy_font(app, error):
    if error is None:
        copy_asset(font(), app.outdir / "_static")


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("build-finished", copy_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
