"""Sphinx's settings: MyST pages, the furo theme, and nothing loaded from another host.

Django is set up with the example project's settings, so that pages can be made from the code
they describe; that opens no connection and starts no server.
"""

import os
import sys
from pathlib import Path

import django

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django.setup()

from leasejobs import __version__  # noqa: E402 - importable since the lines above

project = "leasejobs"
author = "leasejobs contributors"
copyright = author  # noqa: A001 - Sphinx's name for it
release = version = __version__

extensions = ["myst_parser", "state_diagram"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext", "_static"]

html_theme = "furo"
html_title = f"leasejobs {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_copyright = False
