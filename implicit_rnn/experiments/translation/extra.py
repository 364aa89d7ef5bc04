"""Packages that translation alone needs: the extra `translation`."""

from __future__ import annotations

import importlib
from typing import Any

from implicit_rnn.experiments.options import ConfigError


def extra(name: str, what: str) -> Any:
    """A package of the extra; a sentence that says what to install where it is missing.

    Args:
      name: of the package.
      what: needs it, as that sentence begins.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            f"{what} the package {name}: pip install '.[translation]' in a clone"
        ) from None
