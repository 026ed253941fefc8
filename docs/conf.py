"""Configuration of Sphinx for ``make book``: README, guides, notebooks and API as pages that need no network."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]

from uavlab import __version__  # noqa: E402

project, author, copyright = "uavlab", "The uavlab authors", "The uavlab authors"
version = release = __version__

# The root of the repository is the source, so that a link leads to the same page here and in the repository.
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/decisions/*.md", "figures/*.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "figures/*/**", "runs", "tests", "tools", "uavlab", "notebooks/uavlab_lab"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "tools.book.extension"]

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_custom_formats = {".ipynb": "tools.book.notebooks.read"}
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
napoleon_google_docstring, napoleon_numpy_docstring = True, False
python_maximum_signature_line_length = 88
nitpick_ignore_regex = [
    ("py:.*", r"(?!uavlab\.).*"),  # names of other packages, whose pages are not here
    ("py:.*", r"uavlab\..*\.([A-Z]|Class|Function)"),  # type variables
    ("py:.*", r"uavlab\.runtime\.(finite_check|loss_scaler|oom_retry|ranks|stage_timer)\..*"),  # parts of a runtime
    ("py:class", r"uavlab\.core\.(portable\.Signal|registry\.Settings|symptoms\.(Entropy|Range|Remedy))"),
    ("py:class", r"uavlab\.runtime\.grad_step\.Microbatcher"),
    ("py:class", r"uavlab\.experiment\.(config\.Config|run_state\.Change)"),
    ("py:class", r"uavlab\.sweeps\.(spec\.Sweep|table\.Summary)"),
]

highlight_language = "text"  # of blocks that name none: commands and their output

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"uavlab {__version__}"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_search_summary = False  # it fetches pages, which browsers refuse for files
html_show_copyright = False
html_math_renderer = "mathml"
