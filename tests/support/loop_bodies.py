"""The loops of a compiled program, as text."""

import re


def bodies_of_loops(text):
    """The computations that loops of a compiled program run in each step, as lists of lines."""
    computations = {}
    for part in re.split(r"\n\n", text):
        lines = part.strip().splitlines()
        if lines and lines[0].startswith("%"):
            computations[lines[0].split(" ")[0]] = lines[1:]
    found = {}
    names = re.findall(r"body=(%[\w.\-]+)", text)
    while names:
        name = names.pop()
        if name not in found:
            found[name] = computations[name]
            inner = "\n".join(computations[name])
            names += re.findall(r"(?:calls|to_apply)=(%[\w.\-]+)", inner)
    return found
