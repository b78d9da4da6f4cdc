"""How Sphinx builds the site; build.py runs it over the staged pages."""

from __future__ import annotations

import meadow

project = "Meadow"
html_title = f"Meadow {meadow.__version__}"
extensions = ["myst_nb", "sphinx_copybutton"]

html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path: list[str] = []
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]

pygments_dark_style = "monokai"
