"""What docs/security.md says of the code, where the code can be asked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.cli.test_user_text import commands

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a file: what is called, as it is written."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keywords(call: ast.Call) -> dict[str, str]:
    return {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}


def test_the_page_names_every_command_once() -> None:
    named = re.findall(r"^\| `gence ([a-z ]+)` \|", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(commands())


def test_no_file_is_unpickled() -> None:
    loads = []
    for path in SOURCES:
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) (pickle|cloudpickle|dill|joblib|shelve)\b", text, re.MULTILINE), path
        for name, call in calls(path):
            if name == "torch.load":
                loads.append(path.name)
                assert keywords(call)["weights_only"] == "True"
            if name in ("np.load", "numpy.load"):
                assert keywords(call)["allow_pickle"] == "False", path
            assert name not in ("pd.read_pickle", "pandas.read_pickle"), path
    assert loads == ["encoders.py"], "the one file of PyTorch's own format"


def test_no_text_is_executed() -> None:
    for path in SOURCES:
        for name, call in calls(path):
            assert name not in ("eval", "exec", "compile", "os.system", "os.popen"), path
            assert keywords(call).get("shell") != "True", path
            assert keywords(call).get("trust_remote_code", "False") == "False", path
            if name.startswith("subprocess."):
                assert path.name == "environment.py", "git alone, for the commit"


def test_the_limits_are_those_of_the_code() -> None:
    from gence.lab.data.archives import MAX_FILE_BYTES, MAX_UNPACK_RATIO, MIN_UNPACK_LIMIT
    from gence.lab.data.decode import MAX_PIXELS

    assert (MAX_PIXELS, MAX_FILE_BYTES, MIN_UNPACK_LIMIT, MAX_UNPACK_RATIO) == (2**26, 256 * 2**20, 2**30, 100)
    for words in ("`2^26` pixels", "in an archive `256 MiB`", "the larger of\n  `1 GiB` and 100 times its size"):
        assert words in PAGE
