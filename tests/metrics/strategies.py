"""Random predictions for the property tests."""

import torch
from hypothesis import strategies as st


@st.composite
def predictions(draw):
    """Logits (n, K) with many ties, saturation and one-row cases, and a target (n,)."""
    n, classes = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    scale = draw(st.sampled_from([0.0, 0.5, 3.0, 100.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = scale * torch.randn(n, classes, generator=generator)
    if draw(st.booleans()):
        logits = logits.round()  # ties
    return logits, torch.randint(classes, (n,), generator=generator)


@st.composite
def score_pairs(draw):
    """ID and OOD scores on a coarse grid, so that ties within and between the groups are common."""
    values = st.lists(st.integers(-4, 4), min_size=1, max_size=30)
    return torch.tensor(draw(values)) / 4.0, torch.tensor(draw(values)) / 4.0
