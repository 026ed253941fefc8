"""The exit codes that scripts rely on."""

from uavlab.core.errors import ConfigError, DivergedError, FileError, ResourceError, UavlabError


def test_exit_codes() -> None:
    codes = {e: e.exit_code for e in (UavlabError, ConfigError, FileError, DivergedError, ResourceError)}
    assert list(codes.values()) == [1, 2, 3, 4, 5]
    assert all(issubclass(e, UavlabError) for e in codes)
