"""A griffe extension: docstrings as Markdown can show them.

The docstrings use Sphinx roles, LaTeX and bare `>>>` examples. Here roles become code, formulas plain text (no script
has to be fetched to draw them), and examples code blocks.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SYMBOLS = {
    "alpha": "α", "gamma": "γ", "pi": "π", "tau": "τ", "ell": "ℓ", "sum": "Σ", "cdot": "·", "le": "≤", "ge": "≥",
    "ne": "≠", "in": "∈", "leftarrow": "←", "to": "→", "lVert": "‖", "rVert": "‖", "|": "‖", "log": "log",
    "left": "", "right": "", "quad": "  ", ",": " ",
}  # fmt: skip
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_RULES = (
    (re.compile(r"\\frac" + _GROUP + r"\s*" + _GROUP), r"[\1] / [\2]"),
    (re.compile(r"\\frac(\d)([a-z\d])"), r"\1/\2 "),
    (re.compile(r"\\(?:mathrm|mathbf|text|mathrel|operatorname)" + _GROUP), r"\1"),
    (re.compile(r"\\bar\s*(?:\{(\w)\}|(\w))"), "\\1\\2\u0304"),
    (re.compile(r"\\tilde\s*(?:\{(\w)\}|(\w))"), "\\1\\2\u0303"),
)
_COMMAND = re.compile(r"\\([A-Za-z]+|[|,])")
_DISPLAY = re.compile(r"^\.\. math::[ \t]*(?P<line>[^\n]*)(?P<more>(?:\n[ \t]+\S[^\n]*)*)", re.MULTILINE)
_INLINE = re.compile(r":math:`([^`]+)`")
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|obj|data):`~?([^`]+)`")
_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def plain_formula(latex: str) -> str:
    r"""Return a LaTeX formula as plain text.

    >>> plain_formula(r"\frac1n \sum_i \mathrm{softmax}(z_i + b) = \pi")
    '1/n Σ_i softmax(z_i + b) = π'
    """
    text = " ".join(latex.split())
    for pattern, replacement in _RULES:
        while pattern.search(text):
            text = pattern.sub(replacement, text)
    text = _COMMAND.sub(lambda found: SYMBOLS.get(found[1], found[0]), text)
    text = re.sub(r"([_^])\{(\w+)\}", r"\1\2", text)
    text = text.replace("{", "(").replace("}", ")")
    return re.sub(r"(?<=\S) {2,}", " ", text).strip()


def as_markdown(docstring: str) -> str:
    r"""Return a docstring with roles, formulas and examples in Markdown.

    >>> print(as_markdown("See :func:`fit`.\n\n>>> 1 + 1\n2"))
    See `fit`.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """

    def display(found: re.Match[str]) -> str:
        return f"\n```text\n{plain_formula(found['line'] + found['more'])}\n```\n"

    text = _DISPLAY.sub(display, docstring)
    text = _INLINE.sub(lambda found: f"`{plain_formula(found[1])}`", text)
    text = _ROLE.sub(r"`\1`", text)
    text = re.sub(r"(?<=_)\*(?!\*)", r"\\*", text)  # auroc_* is a pattern of names and not the start of italics
    return _EXAMPLE.sub(lambda e: f"{e['indent']}```pycon\n{e[0]}\n{e['indent']}```", text)


class PlainDocstrings(griffe.Extension):
    """Rewrites each docstring as it is collected."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
