"""Equations of a program, at any depth."""

from ampjax.jaxprs.primitives import inner


def equations_in(jaxpr):
    """Yields all equations; an inner program's equations follow the equation that holds the program."""
    for equation in jaxpr.eqns:
        yield equation
        for body in inner(equation):
            yield from equations_in(body)


def loops_in(jaxpr):
    """Yields the equations that are loops, loops in loops, too."""
    for equation in equations_in(jaxpr):
        if equation.primitive.name in ("scan", "while"):
            yield equation
