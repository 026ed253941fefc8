"""A preset and changes of its settings, chosen in fields that are checked as a run would check them."""

import json
from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from uavlab.core.protocols import Env
from uavlab.core.text import one_line, yaml_value
from uavlab.experiment.config import Config, configure, parse_setting, parts
from uavlab.experiment.names import Preset, presets, require_preset
from uavlab.experiment.settings import describe_settings
from uavlab.registration import name_and_parameters
from uavlab_lab.plots.tables import Table
from uavlab_lab.widgets import Panel, guard, matches, paragraphs, scroll_box, write_status

HEADS = {"name": "setting", "value": "value", "kind": "range", "meaning": "meaning"}


class PresetPicker(Panel):
    """Presets to choose from, all settings of the chosen one, and a field for each setting to change.

    ``ul.train(picker.preset.value, settings=picker.settings())`` trains what it shows.

    Attributes:
        preset: The choice of a preset.
        search: Words that a setting in the table must have.
        entry: Where a setting to change is added, as ``name=value``.
        fields: The field of each setting that is changed, by its name.
    """

    def __init__(self, task: str | Env[Any] | None = None) -> None:
        """Offer all presets, or those of the environment of a ``task``: a preset or an environment.

        An environment brings those of its parameters that differ from its defaults as changes.

        Raises:
            ConfigError: There is no such preset, or the task is neither a name nor an environment.
        """
        name, known = _choices(task)
        self.preset = widgets.Dropdown(
            options=[(one_line(f"{name}: {preset.about}"), name) for name, preset in known.items()],
            value=name,
            description="preset",
            tooltip="What is trained",
            layout=widgets.Layout(width="auto"),
        )
        self.about, self.table, self.status, self.changes = (*(widgets.HTML() for _ in range(3)), widgets.VBox())
        self.search = widgets.Text(description="filter", placeholder="words", tooltip="Words that a setting must have")
        self.entry = widgets.Text(
            description="change",
            placeholder="name=value, then Enter",
            tooltip="A setting to change, such as lr=1e-3",
            continuous_update=False,
        )
        self.button = widgets.Button(description="Add", tooltip="Add a field for this setting")
        row = widgets.Box([self.entry, self.button, self.search], layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__([self.preset, self.about, row, self.changes, self.status, self.table], "a preset to change")
        self.fields: dict[str, widgets.Text] = {}
        self.button.on_click(guard(self.status)(self._add))
        self.entry.observe(guard(self.status)(self._add), "value")
        for control in (self.preset, self.search):
            control.observe(guard(self.status)(self._show), "value")
        for each, value in _own_parameters(task).items():
            self._field(each, json.dumps(value))
        guard(self.status)(self._show)()

    def settings(self) -> dict[str, Any]:
        """Return the changes by name.

        Raises:
            ConfigError: A field is not YAML.
        """
        return {name: yaml_value(field.value, name) for name, field in self.fields.items()}

    def config(self) -> Config:
        """Return the settings of a run: those of the preset with the changes.

        Raises:
            ConfigError: A change is none of a setting of this preset, or violates its rules.
        """
        return configure(self.preset.value, self.settings())

    def _add(self, _: Any = None) -> None:
        """Add a field for the setting in ``entry`` if a run would accept it; otherwise its text stays."""
        if not self.entry.value.strip():
            return
        name, value = parse_setting(self.entry.value, "change")
        configure(self.preset.value, {**self.settings(), name: value})
        text = self.entry.value.partition("=")[2].strip()
        if name in self.fields:
            self.fields[name].value = text
        else:
            self._field(name, text)
        self.entry.value = ""
        self._show()

    def _field(self, name: str, text: str) -> None:
        """Add a field with a button that removes it."""
        field = widgets.Text(text, description=name, tooltip=f"Value of {name}", continuous_update=False)
        button = widgets.Button(description="Remove", tooltip=f"Leave {name} as the preset has it")
        row = widgets.HBox([field, button])

        def remove(_: Any) -> None:
            self.fields.pop(name, None)
            self.changes.children = [each for each in self.changes.children if each is not row]
            self._show()

        field.style.description_width = "auto"
        field.observe(guard(self.status)(self._show), "value")
        button.on_click(guard(self.status)(remove))
        self.fields[name] = field
        self.changes.children = [*self.changes.children, row]

    def _show(self, _: Any = None) -> None:
        """List the settings; those of the preset alone where a run would refuse the changes."""
        self.about.value = paragraphs([presets()[self.preset.value].about])
        self._list(configure(self.preset.value))
        config = self.config()
        count = self._list(config)
        changed = f"; changed: {', '.join(self.fields)}" if self.fields else ""
        write_status(self.status, f"{count} settings of {config.preset}{changed}")

    def _list(self, config: Config) -> str:
        """Write the table of the settings that the filter lets through, and return how many of how many these are."""
        rows = describe_settings(parts(config.task.settings), config.values)
        texts = [[str(row[key]) for key in HEADS] for row in rows]
        chosen = [each for each in texts if matches(self.search.value, each)]
        table = Table([*HEADS.values()], chosen)
        self.table.value = scroll_box(table._repr_html_(), "settings of the preset") if chosen else ""
        return f"{len(chosen)} of {len(texts)}"


def _choices(task: Any) -> tuple[str, Mapping[str, Preset]]:
    """Return the preset to begin with, and all to choose from."""
    known = presets()
    if task is None:
        return next(iter(known)), known
    name, _ = name_and_parameters(task)
    require_preset(name)
    known = presets()  # an environment may have been registered just now
    return name, {each: preset for each, preset in known.items() if preset.env == known[name].env}


def _own_parameters(task: Any) -> dict[str, Any]:
    """Return the parameters of an environment that differ from its defaults; a name has none."""
    if task is None:
        return {}
    name, parameters = name_and_parameters(task)
    return {each: value for each, value in parameters.items() if value != configure(name).values[each]}
