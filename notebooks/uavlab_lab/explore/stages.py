"""The table of stages of a curriculum as widgets: each change is checked as a run would check it."""

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from uavlab.core.errors import ConfigError
from uavlab.core.text import markup, one_line, yaml_value
from uavlab.experiment.config import configure
from uavlab.experiment.curriculum import Curriculum, parse
from uavlab_lab.labels import label_of
from uavlab_lab.plots import charts
from uavlab_lab.widgets import Panel, guard, write_status

NUMBER, COLUMN, GAP = 50, 80, 4  # widths of the column of numbers, of others at least, and between them (px)
LABEL = "the table of stages: change it, then run the next cell"


def preset_stages(name: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the environment of a preset and its curriculum as a table.

    Raises:
        ConfigError: There is no such preset, or it has no curriculum.
    """
    config = configure(name)
    if config.run.curriculum is None:
        raise ConfigError(f"{name}: has no curriculum; choose a preset with stages, such as assignment_curriculum.")
    return config.env, config.run.curriculum


def names_of(table: Mapping[str, Any]) -> list[str]:
    """Return the names that the stages of a table set, in the order in which they appear."""
    return list(dict.fromkeys(name for stage in table["stages"] for name in stage))


def summary(table: Mapping[str, Any]) -> charts.Table:
    """Tabulate stages, one in each row; a dash is what a stage leaves as it is."""
    rows = [
        {"": number, **{name: text(value) for name, value in stage.items()}}
        for number, stage in enumerate(table["stages"], 1)
    ]
    return charts.table(rows, {"": "stage", **{name: label_of(name) for name in names_of(table)}})


def text(value: Any) -> str:
    """Return a value of a stage as people write it: ``[2, 3]``, ``0.9``."""
    return str(list(value) if isinstance(value, tuple) else value)


class StageEditor(Panel):
    """A field for each value of each stage; an empty one leaves the value to the task.

    Attributes:
        fields: By stage and name.
    """

    def __init__(self, env: Any, table: Mapping[str, Any]) -> None:
        """Show the stages of a table for a task."""
        self.env, self.rules = env, {name: value for name, value in table.items() if name != "stages"}
        names, wide = names_of(table), widgets.Layout(width="auto")
        self.fields = [
            {
                name: widgets.Text(
                    text(stage[name]) if name in stage else "",
                    tooltip=one_line(f"stage {number}: {label_of(name)}"),
                    layout=wide,
                )
                for name in names
            }
            for number, stage in enumerate(table["stages"], 1)
        ]
        self.status = widgets.HTML()
        cells: list[Any] = [widgets.HTML(markup(head)) for head in ("stage", *names)]
        for number, row in enumerate(self.fields, 1):
            cells += [widgets.Label(str(number)), *row.values()]
        columns = f"{NUMBER}px repeat({len(names)}, minmax({COLUMN}px, 150px))"
        least = f"{NUMBER + (COLUMN + GAP) * len(names)}px"  # or the page would squeeze the columns, and cut the last
        grid = widgets.GridBox(
            cells, layout=widgets.Layout(grid_template_columns=columns, grid_gap=f"0 {GAP}px", min_width=least)
        )
        super().__init__([widgets.Box([grid], layout=widgets.Layout(overflow="auto")), self.status], LABEL)
        for row in self.fields:
            for field in row.values():
                field.observe(guard(self.status)(self._check), "value")
        guard(self.status)(self._check)()

    def table(self) -> dict[str, Any]:
        """Return the curriculum as it stands, the value of a run's setting ``curriculum``.

        Raises:
            ConfigError: A field is not YAML.
        """
        stages = [
            {
                name: yaml_value(field.value, f"stage {number}: {name}")
                for name, field in row.items()
                if field.value.strip()
            }
            for number, row in enumerate(self.fields, 1)
        ]
        return {**self.rules, "stages": stages}

    def plan(self) -> Curriculum:
        """Return the curriculum as it stands, checked.

        Raises:
            ConfigError: A value or a rule is violated.
        """
        return parse(self.table(), self.env)

    def _check(self, _: Any = None) -> None:
        plan = self.plan()
        write_status(self.status, f"{len(plan.stages)} stages, judged by {label_of(plan.metric, self.env)}")
