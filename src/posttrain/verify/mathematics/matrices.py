"""A matrix, a multiple of one, and the sums and products of matrices of numbers, which are computations."""

from __future__ import annotations

from posttrain.verify.mathematics.cursor import NotAnExpression
from posttrain.verify.mathematics.evaluate import Evaluator
from posttrain.verify.mathematics.polynomials import Ratio, exactly, number
from posttrain.verify.mathematics.tree import Grid, Literal, Minus, Node, Product, Sum, contains
from posttrain.verify.mathematics.values import Expression, Matrix, Number, Value

Rows = tuple[tuple[Ratio, ...], ...]


def matrix_of(node: Node, evaluator: Evaluator) -> Matrix:
    """The matrix that an expression is; NotAnExpression for one that is none."""
    match node:
        case Grid():
            return Matrix(tuple(tuple(_cell(cell, evaluator) for cell in row) for row in node.rows))
        case Minus():
            return matrix_of(Product((Literal(-1), node.of), signed=False), evaluator)
        case Product(factors=(*scalars, Grid() as grid)) if not any(contains(scalar, Grid) for scalar in scalars):
            scaled = tuple(tuple(Product((*scalars, cell), signed=False) for cell in row) for row in grid.rows)
            return matrix_of(Grid(scaled), evaluator)
        case _:
            evaluator.computations.add("matrix")
            return Matrix(tuple(tuple(_number(entry) for entry in row) for row in _rows(node, evaluator)))


def _cell(node: Node, evaluator: Evaluator) -> Value:
    ratio = evaluator(node)
    value = ratio.rational
    decimal = isinstance(node, Literal) and node.decimal
    return Value(ratio.key(), Expression(node, ratio) if value is None else Number(value, decimal))


def _number(entry: Ratio) -> Value:
    value = entry.rational
    if value is None:
        raise NotAnExpression
    return Value(exactly(value), Number(value))


def _rows(node: Node, evaluator: Evaluator) -> Rows:
    """The entries of a sum or a product; every operation pays from the budget of the answer."""
    match node:
        case Grid():
            return tuple(tuple(evaluator(cell) for cell in row) for row in node.rows)
        case Minus():
            return _product(((number(-1),),), _rows(node.of, evaluator), evaluator)
        case Sum(terms=(first, *others)):
            total = _rows(first, evaluator)
            for term in others:
                total = _sum(total, _rows(term, evaluator), evaluator)
            return total
        case Product(factors=(first, *others)):
            product = _rows(first, evaluator)
            for factor in others:
                product = _product(product, _rows(factor, evaluator), evaluator)
            return product
        case _ if not contains(node, Grid):
            return ((evaluator(node),),)
        case _:
            raise NotAnExpression


def _sum(one: Rows, other: Rows, evaluator: Evaluator) -> Rows:
    if [len(row) for row in one] != [len(row) for row in other]:
        raise NotAnExpression
    add = evaluator.algebra.add
    return tuple(tuple(map(add, left, right)) for left, right in zip(one, other, strict=True))


def _product(one: Rows, other: Rows, evaluator: Evaluator) -> Rows:
    """Rows by columns; a single entry multiplies all of a matrix."""
    algebra = evaluator.algebra
    for scalar, rows in ((one, other), (other, one)):
        if [len(row) for row in scalar] == [1]:
            return tuple(tuple(algebra.multiply(scalar[0][0], entry) for entry in row) for row in rows)
    columns = list(zip(*other, strict=True)) if len({len(row) for row in other}) == 1 else []
    if not columns or any(len(row) != len(other) for row in one):
        raise NotAnExpression
    return tuple(tuple(_inner(row, column, evaluator) for column in columns) for row in one)


def _inner(row: tuple[Ratio, ...], column: tuple[Ratio, ...], evaluator: Evaluator) -> Ratio:
    algebra = evaluator.algebra
    total = number(0)
    for left, right in zip(row, column, strict=True):
        total = algebra.add(total, algebra.multiply(left, right))
    return total
