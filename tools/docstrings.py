"""Show docstrings as they are meant in the built documentation (named in mkdocs.yml).

The docstrings carry doctests and `.. math::` blocks bare, as in Python and Sphinx.
Markdown would take `>>>` for quotations and `[...]` for links, so both become fenced blocks here.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# From a prompt to the next empty line, with the output of the example.
EXAMPLE = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n(?=[ ]*\S).*)*", re.MULTILINE)
# The lines that are indented deeper than the directive, empty ones between them included.
MATHS = re.compile(
    r"^(?P<indent>[ ]*)\.\. math::[ ]*(?P<body>.*(?:\n(?:[ ]*$|(?P=indent)[ ]+\S.*))*)",
    re.MULTILINE,
)


def fenced(docstring: str) -> str:
    """Put the examples and equations of a docstring into fenced blocks.

    >>> fenced("Add one.\\n\\n>>> 1 + 1\\n2\\n\\nDone.").splitlines()
    ['Add one.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Done.']
    """
    docstring = MATHS.sub(_equation, docstring)
    return EXAMPLE.sub(r"\g<indent>```pycon\n\g<0>\n\g<indent>```", docstring)


def _equation(found: re.Match[str]) -> str:
    indent, body = found["indent"], found["body"].strip("\n").rstrip()
    # A blank line on either side, which Markdown needs and the docstring may lack.
    return f"\n{indent}```math\n{body}\n{indent}```\n"


class Fence(griffe.Extension):
    """Rewrite each docstring when it is read, before it is divided into sections."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every object it finds."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
