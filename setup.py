"""The parts of the build that pyproject.toml cannot state: the description without relative links, and the data.

The wheel brings the notebooks without outputs, the records and the two trained runs, as ``uavlab_lab/data``, which has
the folders of a checkout.
"""

import json
import re
from pathlib import Path
from shutil import copyfile

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
DATA = ("notebooks/*.ipynb", "figures/*/**/*.*")
PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)")


def description(text: str) -> str:
    """Return the README without relative pictures and links, which lead nowhere outside the repository."""
    return LINK.sub(r"\1", PICTURE.sub("", text))


def without_outputs(text: str) -> str:
    """Return the text of a notebook without outputs and execution counts."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


class WithData(build_py):
    """Copy the data beside the modules of a built package."""

    def run(self) -> None:
        """Copy the modules, then the data; an editable installation finds the data in the checkout."""
        super().run()
        for source in () if self.editable_mode else sorted(path for each in DATA for path in ROOT.glob(each)):
            target = Path(self.build_lib, "uavlab_lab", "data", source.relative_to(ROOT))
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".ipynb":
                target.write_text(without_outputs(source.read_text(encoding="utf-8")), encoding="utf-8")
            elif source.is_file():
                copyfile(source, target)


setup(
    long_description=description((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": WithData},
)
