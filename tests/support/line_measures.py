"""How dense the code's lines are, by package: `python -m support.line_measures`, run in `tests/`, prints a table.

With `--write` it also writes the figures to which `unit/test_line_measures.py` holds each package. It lowers them only: whoever has to raise one does it by hand, and says why in the
commit.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("line_figures.json")
PARTS = ("tests", "experiments")
"""What is measured as a whole, beside the packages of ampjax."""
APART = ("experiments.data", "experiments.models")
"""Folders of these parts that are measured by themselves."""
DENSE = 20
"""A line with more tokens is dense."""
COMPLEX = 15
"""A function with a higher complexity is complex."""
HELD = {
    "tokens_per_line": 0.1,
    "dense_percent": 0.5,
    "parallel_percent": 0.1,
    "complex_functions": 1,
    "leaning_docstrings": 5,
}
"""The figures that may only fall, and the steps in which they do: within a step a change may raise one."""
WHOLE = "ampjax, all of it"
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_DECISIONS = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
    ast.comprehension,
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)
_LEANS = re.compile(
    r"^(?:What|Who|Whose|Which|Where|When|How|Why|That|Those|These|It|They)\b"
    r"|\b(?:what|whatever|whoever|those|it|they|them|itself|themselves)\b"
    r"|\bthese(?:[,.;:]| (?:are|were|is|was|have|has|do|may|must|can)\b)"
    r"|(?:^|[,:;] )who\b"
)
"""A pronoun where a noun belongs: at the beginning of a line, or as its subject or object."""


@dataclass
class LineMeasures:
    """Counts of some files.

    Args:
      lines: Lines on which a token of code begins; docstrings, strings under attributes, comments and layout are none.
      tokens: Tokens of code.
      dense: Lines with more than `DENSE` tokens.
      comments: Comments.
      assignments: Assignments, those to several names at once included.
      parallel: Assignments of several values to as many targets, unless they swap.
      complexities: The complexity of each function, by file and name.
      leaning: Docstrings whose first lines lean on a pronoun.
    """

    lines: int = 0
    tokens: int = 0
    dense: int = 0
    comments: int = 0
    assignments: int = 0
    parallel: int = 0
    complexities: dict[str, int] = field(default_factory=dict)
    leaning: int = 0

    def add(self, text: str, name: str) -> None:
        """Counts a file.

        Args:
          text: Its text.
          name: Its name.
        """
        tree = ast.parse(text)
        prose = set(_prose_lines(tree))
        per_line: Counter[int] = Counter()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            self.comments += token.type == tokenize.COMMENT
            if token.type not in _LAYOUT and token.start[0] not in prose:
                per_line[token.start[0]] += 1
        self.lines += len(per_line)
        self.tokens += per_line.total()
        self.dense += sum(n > DENSE for n in per_line.values())
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                self.assignments += 1
                self.parallel += is_parallel(node)
            if isinstance(node, _FUNCTIONS):
                self.complexities[f"{name}:{node.name}:{node.lineno}"] = complexity(node)
            if isinstance(node, _DOCUMENTED):
                self.leaning += leans(ast.get_docstring(node) or "")

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the table, by name."""
        return {
            "code_lines": self.lines,
            "tokens": self.tokens,
            "tokens_per_line": round(self.tokens / max(self.lines, 1), 2),
            "dense_percent": round(
                100 * self.dense / max(self.lines, 1),
                1,
            ),
            "parallel_percent": round(
                100 * self.parallel / max(self.assignments, 1),
                2,
            ),
            "comments_per_100": round(
                100 * self.comments / max(self.lines, 1),
                1,
            ),
            "complex_functions": len(self.complex_functions),
            "leaning_docstrings": self.leaning,
        }

    @property
    def complex_functions(self) -> dict[str, int]:
        """The functions that are too complex, the worst first."""
        ranked = sorted(
            self.complexities.items(),
            key=lambda each: -each[1],
        )
        return {name: n for name, n in ranked if n > COMPLEX}


def is_parallel(node: ast.Assign) -> bool:
    """Whether an assignment is several in one, and does not swap."""
    target = node.targets[0]
    several = (ast.Tuple, ast.List)
    if not isinstance(target, several) or not isinstance(node.value, several):
        return False
    targets = sorted(map(ast.unparse, target.elts))
    return targets != sorted(map(ast.unparse, node.value.elts))


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A function's decisions, plus one: branches, loops, handlers, conditional expressions, loops of comprehensions, each `and` and `or`.

    Functions inside of it count for themselves.

    Args:
      function: The function.
    """
    n = 1
    for node in _inside(function):
        n += isinstance(node, _DECISIONS)
        if isinstance(node, ast.BoolOp):
            n += len(node.values) - 1
    return n


def leans(docstring: str) -> bool:
    """Whether a docstring's first line has a pronoun (what, those, it, ...) in place of a noun."""
    return bool(_LEANS.search(docstring.partition("\n")[0]))


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside of it."""
    left = list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, _FUNCTIONS):
            left.extend(ast.iter_child_nodes(node))


def _prose_lines(tree: ast.AST) -> Iterator[int]:
    """The lines of strings that stand for themselves: docstrings, and strings under attributes."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def measured(root: Path = ROOT) -> dict[str, LineMeasures]:
    """Counts of each package of ampjax, and of the other parts and their folders, of a checkout.

    Args:
      root: The checkout.
    """
    found: dict[str, LineMeasures] = {}
    for part in ("ampjax", *PARTS):
        for path in sorted((root / part).rglob("*.py")):
            name = path.relative_to(root)
            package = part
            folder = ".".join(name.parts[:2])
            if folder in APART or (part == "ampjax" and len(name.parts) > 2):
                package = folder
            text = path.read_text(encoding="utf-8")
            found.setdefault(package, LineMeasures()).add(
                text,
                name.as_posix(),
            )
            if part == "ampjax" and package != part:
                found.setdefault(WHOLE, LineMeasures()).add(
                    text,
                    name.as_posix(),
                )
    return found


def lowered(
    now: dict[str, float],
    held: dict[str, float],
) -> dict[str, float]:
    """The figures to hold a package to from now on.

    Args:
      now: Its figures.
      held: Those to which it was held; empty for a new package.
    """
    new = {}
    for name, step in HELD.items():
        figure = round(
            math.ceil(round(now[name] / step, 6)) * step,
            6,
        )
        new[name] = min(figure, held.get(name, figure))
    return new


def _print_table(measures: dict[str, LineMeasures]) -> None:
    names = list(next(iter(measures.values())).figures)
    print(f"{'':24}" + "".join(f"{name:>18}" for name in names))
    for package, each in measures.items():
        print(f"{package:24}" + "".join(f"{figure:>18,}" for figure in each.figures.values()))


def main() -> None:
    """Prints the table and the complex functions; with `--write` lowers what packages are held to."""
    measures = measured()
    _print_table(measures)
    for package, each in measures.items():
        for name, n in each.complex_functions.items() if package != WHOLE else ():
            print(f"{n:4} {name}")
    if "--write" in sys.argv:
        if FILE.exists():
            held = json.loads(FILE.read_text())
        else:
            held = {}
        new = {}
        for package, each in measures.items():
            new[package] = lowered(
                each.figures,
                held.get(package, {}),
            )
        FILE.write_text(json.dumps(new, indent=1) + "\n")


if __name__ == "__main__":
    main()
