"""Settings of the site: ``make docs`` builds it into build/docs/html, with warnings as errors.

Sphinx, because the docstrings are reStructuredText with ``:math:``; the guides are Markdown (MyST), so that
they can be read where they lie. Nothing is fetched when a page is viewed: formulas are MathML, which browsers
draw themselves, and the theme uses the fonts of the system.
"""

import logging
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import qkcore  # noqa: E402

project = "qkcore"
author = copyright = "The qkcore authors"
release = version = qkcore.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx_gallery.gen_gallery",
    "myst_parser",
    "mathml",
    "docstrings",
]
exclude_patterns = ["_ext", "figures", "gallery", "sg_execution_times.rst"]

# Scripts of docs/gallery are run by the build, each checks what its figure shows, and a failure stops it.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,  # times differ from build to build
    "write_computation_times": False,
    "reference_url": {},
}
# A pattern in index.md that matches nothing yet is no error; a page that no list names is one.
logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: "didn't match any documents" not in str(record.msg)
)

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings give shapes, which say more than ArrayLike
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"qkcore {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_copy_source = False
