"""An argument parser whose errors are ``ConfigError``, like every other mistake of the user."""

import argparse
from typing import Any, NoReturn

from gossamer.core.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """The parser of a command: flags are not abbreviated, and an error is one line."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **how})

    def error(self, message: str) -> NoReturn:
        """Raise ``ConfigError`` instead of printing the usage."""
        raise ConfigError(f"{message}: see {self.prog} --help")
