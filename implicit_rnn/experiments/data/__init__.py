"""Data sets that experiments load: where their files are, how to fetch them, how to read them."""

from implicit_rnn.experiments.data.catalogue import DATASETS, DataSet, File
from implicit_rnn.experiments.data.fetch import fetch, fetch_all, show, verify_all
from implicit_rnn.experiments.data.files import (
    MOST,
    DataError,
    checked,
    contents,
    find,
    folders,
    sound,
    verify,
)

__all__ = [
    "DATASETS",
    "MOST",
    "DataError",
    "DataSet",
    "File",
    "checked",
    "contents",
    "fetch",
    "fetch_all",
    "find",
    "folders",
    "show",
    "sound",
    "verify",
    "verify_all",
]
