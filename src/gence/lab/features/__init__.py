"""Pretrained encoders, the cache of their features, and heads that train on them by the hundred.

`load_encoder` and `embed` turn images into features once, `row_encoder` and `embed_rows` the rows of a table;
`train_heads` trains all heads of a comparison together.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.features.embedding import FeatureSet, ImageSource, embed
    from gence.lab.features.encoders import (
        DEFAULT_ENCODER,
        Encoder,
        EncoderError,
        check_encoder,
        embedded_encoder_is_installed,
        known_encoders,
        load_encoder,
        named_encoder,
        remember_weights,
        untrained_encoder,
    )
    from gence.lab.features.heads import (
        FOLDS,
        HEAD_RECIPE,
        HEADS,
        PROJECTION,
        REFERENCES,
        TRIALS,
        Head,
        HeadProblem,
        HeadRun,
        HeldOut,
        Reference,
        Scaling,
        TrainedHead,
        Trial,
        Tuned,
        affordable_references,
        choose_trial,
        cross_fit_heads,
        fit_references,
        logits_of,
        stratified_folds,
        train_heads,
        train_projections,
        tune_heads,
    )
    from gence.lab.features.names import EncoderModel, head_run, is_encoder_model
    from gence.lab.features.preprocessing import VIEWS, Preprocessing
    from gence.lab.features.rows import (
        RowEncoder,
        default_row_encoder,
        embed_rows,
        is_row_encoder,
        new_features,
        row_encoder,
        saved_encoder,
    )
    from gence.lab.features.texts import TEXT_ENCODER, TextEncoder, load_text_encoder

__getattr__, __dir__, __all__ = front_door(__name__)
