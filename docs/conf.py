"""Configuration of the documentation site: ``make docs`` builds it with Sphinx into out/site."""

import re

from sphinxcontrib.svgbob.directive import SvgbobDirective

import turbopump
from turbopump.client.sending.settings import DEFAULT_GROUP

project = "Turbopump"
author = project_copyright = "The Turbopump authors"
release = version = turbopump.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.svgbob",
]
root_doc = "index"
exclude_patterns = ["README.md", "explanations/benchmarks.json"]
html_theme = "furo"
html_title = f"Turbopump {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nitpicky = False

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88

PAGE_NAME = re.compile(r"`*docs/([\w/-]+)\.md(?:#[\w-]+)?`*")


def link_pages(app, what, name, obj, options, lines):
    """Turn the names of pages in a docstring, as docs/guide/tls.md, into links."""
    for number, line in enumerate(lines):
        lines[number] = PAGE_NAME.sub(r":doc:`/\1`", line)


def name_default_group(app, what, name, obj, options, signature, returns):
    """Show the default group of any program, not that of Sphinx."""
    return signature and signature.replace(DEFAULT_GROUP, "PROGRAM-producer"), returns


class Diagram(SvgbobDirective):
    """ASCII art drawn as SVG, in letters no wider than a cell of svgbob's grid (8 pixels)."""

    def run(self):
        self.options.setdefault("font-size", 13)
        return super().run()


def setup(app):
    app.add_directive("svgbob", Diagram, override=True)
    app.connect("autodoc-process-docstring", link_pages)
    app.connect("autodoc-process-signature", name_default_group)
