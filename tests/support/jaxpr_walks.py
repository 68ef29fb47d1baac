"""Equations of a program, wherever they are in it."""

from ampjax.jaxprs.primitives import inner


def equations_in(jaxpr):
    """Yields all equations, those of inner programs behind the one that holds them."""
    for equation in jaxpr.eqns:
        yield equation
        for body in inner(equation):
            yield from equations_in(body)


def loops_in(jaxpr):
    """Yields the equations that are loops, loops in loops, too."""
    for equation in equations_in(jaxpr):
        if equation.primitive.name in ("scan", "while"):
            yield equation
