"""Data sets that experiments load: where their files are, how to fetch them, how to read them."""

from implicit_rnn.experiments.data.files import (
    DATASETS,
    DataError,
    DataSet,
    File,
    checked,
    fetch,
    fetch_all,
    find,
    folders,
    show,
    sound,
    verify,
    verify_all,
)

__all__ = [
    "DATASETS",
    "DataError",
    "DataSet",
    "File",
    "checked",
    "fetch",
    "fetch_all",
    "find",
    "folders",
    "show",
    "sound",
    "verify",
    "verify_all",
]
