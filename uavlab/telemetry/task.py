"""The task of predicting quantities that are not in a flight log from windows of it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from uavlab.core.types import Rule
from uavlab.telemetry.dataset import PHYSICS_ROWS


@dataclass(frozen=True)
class Telemetry:
    """Prediction of hidden quantities and of the tracking error ahead from a window of a flight log.

    Attributes:
        logs: Folder of logs to learn from; simulated flights if empty.
        mapping: YAML file that maps fields of the logs to columns; fields are named like columns if empty.
        flights: Flights to simulate.
        first: Seed of the first flight; a flight depends on its own seed alone.
        least: Rows of the shortest simulated flight, 100 per second.
        most: Rows of the longest simulated flight.
        wind: Strongest mean wind (m/s).
        payload: Heaviest payload (kg).
        training: Share of the flights in the training set.
        validation: Share of the flights in the validation set, which selects the model; the rest is the test set.
        used: Share of the training flights that are used, to measure the effect of less data.
        split: Seed of the random split of flights.
        window: Rows of a window (T).
        horizon: Rows ahead for which it predicts the tracking error (H).
        stride: Rows between windows.
    """

    logs: str = ""
    mapping: str = ""
    flights: Annotated[int, Ge(3), Le(100_000)] = 60
    first: Annotated[int, Ge(0), Le(2**31)] = 0
    least: Annotated[int, Ge(2), Le(100_000)] = 2000
    most: Annotated[int, Ge(2), Le(100_000)] = 5000
    wind: Annotated[float, Ge(0), Le(20)] = 8.0
    payload: Annotated[float, Ge(0), Le(1)] = 0.5
    training: Annotated[float, Ge(0.01), Le(0.98)] = 0.7
    validation: Annotated[float, Ge(0.01), Le(0.98)] = 0.15
    used: Annotated[float, Ge(0.001), Le(1)] = 1.0
    split: Annotated[int, Ge(0), Le(2**31)] = 0
    window: Annotated[int, Ge(2), Le(10_000)] = 200
    horizon: Annotated[int, Ge(1), Le(1000)] = 50
    stride: Annotated[int, Ge(1), Le(1000)] = 5

    labels: ClassVar[dict[str, str]] = {
        "mean_r2": "mean R²",
        "wind": "wind (m/s)",
        "error": "error ahead",
        "wind_north": "wind north",
        "wind_east": "wind east",
        "motor_lag": "motor lag",
        "battery_sag": "battery sag",
        "error_north": "error north",
        "error_east": "error east",
        "error_down": "error down",
    }
    score: ClassVar[dict[str, float]] = {"mean_r2": 1.0}

    rules: ClassVar[tuple[Rule, ...]] = (
        (("mapping", "logs"), lambda m, f: f or not m, "mapping {0} without logs: set the folder that it is for"),
        (("least", "most"), lambda a, b: a <= b, "least {0} > most {1}: no flight is as long as that"),
        (
            ("window", "horizon", "least"),
            lambda w, h, n: w + h <= n,
            "window {0} + horizon {1} > least {2}: flights are too short",
        ),
        (
            ("physics", "window"),
            lambda p, w: p == 0 or w >= PHYSICS_ROWS,
            f"physics {{0}} looks at {PHYSICS_ROWS} rows, window {{1}} has fewer",
        ),
        (
            ("training", "validation"),
            lambda a, b: a + b < 1,
            "training {0} + validation {1} leave no flight for the test",
        ),
    )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of a window, and rows ahead."""
        return self.window, self.horizon

    spec = shape  # all that a learner needs
