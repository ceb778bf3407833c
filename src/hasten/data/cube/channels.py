"""Name the fields of a sample: one channel for each variable, or for each level of a variable that has levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hasten.core.errors import DataError
from hasten.data.cube.cube import Cube, missing


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One field of a sample: a variable at one level.

    Attributes:
        variable: Name of the variable in the files.
        standard_name: Its name by the CF conventions. Empty if the files do not say.
        units: Units of its values, as stored. Empty if the files do not say.
        level: Value of the level. None if the variable has none.
        level_units: Units of the level, such as `hPa` or `m`. Empty if there is none, or the files do not say.
    """

    variable: str
    standard_name: str
    units: str
    level: float | None
    level_units: str


def channels_of(cube: Cube, variables: Sequence[str] | None = None) -> tuple[Channel, ...]:
    """Return the channels of a cube: variable by variable, each level in the order of the files.

    Args:
        cube: The cube.
        variables: Names of the variables, in the order wanted. None for all.

    Raises:
        DataError: There is no such variable.
    """
    channels: list[Channel] = []
    for name in cube.variables if variables is None else variables:
        if name not in cube.variables:
            raise DataError(missing(name, cube.variables, cube.left_out))
        variable = cube.variables[name]
        levels = next(((axis.values.tolist(), axis.units) for axis in variable.axes if axis.role == "level"), ([None], ""))
        channels += [
            Channel(
                variable=name,
                standard_name=variable.standard_name,
                units=variable.units,
                level=level,
                level_units=levels[1],
            )
            for level in levels[0]
        ]
    return tuple(channels)
