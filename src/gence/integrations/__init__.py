"""Other frameworks, one file each, imported only when asked for."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.integrations.estimator import GenCEClassifier
    from gence.integrations.huggingface import GenCETrainer
    from gence.integrations.lightning import ExactAccumulation, LookAheadLoader

__getattr__, __dir__, __all__ = front_door(__name__)
