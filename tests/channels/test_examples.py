"""The examples of channels run, and are as short as they are said to be."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> int:
    """The lines of code, without imports, docstrings and the entry point."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            left_out |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        elif isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            left_out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in tokens if token.type not in _NO_CODE} - left_out)


@pytest.mark.parametrize(
    ("name", "says", "most"),
    [
        pytest.param("camera_channel", "all: the last frame was 40, 0 were skipped", 28, marks=pytest.mark.exhaustive),
        ("work_queue", "12 jobs are done; 1 worker died", 25),
    ],
)
def test_it_runs(name: str, says: str, most: int) -> None:
    place = EXAMPLES / f"{name}.py"
    assert code_lines(place.read_text(encoding="utf-8")) <= most
    done = subprocess.run([sys.executable, str(place)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
