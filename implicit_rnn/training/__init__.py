"""Training for any task and any model: a recipe, an optimiser, a loop, checkpoints."""

from implicit_rnn.models.base import Outcome
from implicit_rnn.training.checkpoint import CheckpointError
from implicit_rnn.training.folder import FolderError
from implicit_rnn.training.loop import TrainingError, train
from implicit_rnn.training.optimiser import OptimiserSettings
from implicit_rnn.training.parallel import Layout, ParallelSettings
from implicit_rnn.training.protocols import Model, Split, Task
from implicit_rnn.training.recipe import Recipe
from implicit_rnn.training.restore import Trained, restore
from implicit_rnn.training.settings import SettingsError, TrainingSettings
from implicit_rnn.training.sources import Examples, Source, arrays, labelled
from implicit_rnn.training.step import State, Trainer, trainer
from implicit_rnn.training.watch import Watch

__all__ = [
    "CheckpointError",
    "Examples",
    "FolderError",
    "Layout",
    "Model",
    "OptimiserSettings",
    "Outcome",
    "ParallelSettings",
    "Recipe",
    "SettingsError",
    "Source",
    "Split",
    "State",
    "Task",
    "Trained",
    "Trainer",
    "TrainingError",
    "TrainingSettings",
    "Watch",
    "arrays",
    "labelled",
    "restore",
    "train",
    "trainer",
]
