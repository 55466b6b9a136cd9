"""From a name to a network: `networks` has the architectures, `registry` their names and initialisations."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.models.fused_norm import Paired, norm_add_relu, norm_relu, norm_relu_for_two, plain_norms
    from gence.lab.models.networks import Backbone, ImageClassifier
    from gence.lab.models.registry import OWN, check_model, create_model, known_models, model_name, named_model

__getattr__, __dir__, __all__ = front_door(__name__)
