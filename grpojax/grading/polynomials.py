r"""Exact equality, without sympy, of fractions of polynomials in letters, pi, e, i and square roots.

Every polynomial has one normal form, because i^2 = -1, \sqrt p^2 = p, and the square roots of products of different
primes are linearly independent over the rational numbers, as are the powers of pi. Letters are positive numbers.
"""

from fractions import Fraction

from grpojax.grading.latex import Tree

Generator = tuple[str, str]  # ("letter", "x"), ("constant", "pi"), ("root", "2"), ("root", "x")
Monomial = tuple[tuple[Generator, int], ...]  # sorted, exponents above zero
Polynomial = dict[Monomial, Fraction]  # without zeros

MAX_WORK = 4_000  # products of terms for one comparison
MAX_BITS = 2_000  # of a coefficient
MAX_PRIME = 1_000  # largest trial divisor of a number under a root
ONE: Polynomial = {(): Fraction(1)}
_I = ("constant", "i")


class OutOfReach(Exception):
    """Not a fraction of polynomials, or one that is too large."""


def same_value(left: Tree, right: Tree) -> bool | None:
    r"""Whether two folded trees are the same value; None if that takes more than polynomials.

    >>> from grpojax.grading.equality import tree_of
    >>> same_value(tree_of(r"\frac{1}{\sqrt{8}}"), tree_of(r"\frac{\sqrt{2}}{4}"))
    True
    """
    try:
        work = _Work()
        (over, under), (other_over, other_under) = work.fraction(left), work.fraction(right)
        difference = work.added(work.multiplied(over, other_under), work.multiplied(other_over, under), -1)
    except OutOfReach:
        return None
    constants = {generator for monomial in difference for generator, _ in monomial if generator[0] == "constant"}
    if difference and {("constant", "pi"), ("constant", "e")} <= constants:
        return None  # nobody knows whether pi + e is rational
    return not difference


def ratio(left: tuple[Tree, Tree], right: tuple[Tree, Tree]) -> Fraction | None:
    """The rational c with left[0] - left[1] = c (right[0] - right[1]); 0 if none has, None as in `same_value`."""
    try:
        work = _Work()
        overs, unders = [], []
        for one, other in (left, right):
            (over, under), (less, its_under) = work.fraction(one), work.fraction(other)
            overs.append(work.added(work.multiplied(over, its_under), work.multiplied(less, under), -1))
            unders.append(work.multiplied(under, its_under))
        one, other = work.multiplied(overs[0], unders[1]), work.multiplied(overs[1], unders[0])
    except OutOfReach:
        return None
    if any(generator[0] != "letter" for monomial in {**one, **other} for generator, _ in monomial):
        return None
    if not other or one.keys() != other.keys():
        return Fraction(0)
    ratios = {one[monomial] / other[monomial] for monomial in one}
    return ratios.pop() if len(ratios) == 1 else Fraction(0)


class _Work:
    """Counts its operations, and gives up after too many."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def fraction(self, tree: Tree) -> tuple[Polynomial, Polynomial]:
        """Numerator and denominator, which is not zero."""
        kind, *parts = tree
        if kind == "number":
            return _polynomial((), parts[0]), ONE
        if kind == "symbol":
            return _polynomial(((("letter", parts[0]), 1),)), ONE
        if kind == "constant" and parts[0] != "infinity":
            return _polynomial(((("constant", parts[0]), 1),)), ONE
        if kind == "power":
            return self._power(*parts)
        if kind not in ("add", "multiply"):
            raise OutOfReach
        over, under = self.fraction(parts[0])
        for part in parts[1:]:
            other_over, other_under = self.fraction(part)
            if kind == "add" and under == other_under:
                over = self.added(over, other_over)
                continue
            if kind == "add":
                over = self.added(self.multiplied(over, other_under), self.multiplied(other_over, under))
            else:
                over = self.multiplied(over, other_over)
            under = self.multiplied(under, other_under)
        return over, under

    def _power(self, base: Tree, exponent: Tree) -> tuple[Polynomial, Polynomial]:
        if exponent[0] != "number" or exponent[1].denominator > 2 or abs(exponent[1]) > MAX_WORK:
            raise OutOfReach
        over, under = self.fraction(base)
        if exponent[1].denominator == 2:
            if any(coefficient < 0 for coefficient in under.values()):
                over, under = self.added({}, over, -1), self.added({}, under, -1)
            over, under = self._root(self.multiplied(over, under)), under  # sqrt(a/b) = sqrt(ab) / b for b > 0
        if exponent[1] < 0:
            over, under = under, over
            if not under:
                raise OutOfReach
        times = abs(exponent[1].numerator)
        return self._repeated(over, times), self._repeated(under, times)

    def _root(self, value: Polynomial) -> Polynomial:
        """The square root of a single term."""
        if len(value) != 1:
            raise OutOfReach
        ((monomial, coefficient),) = value.items()
        result = self._root_of_number(coefficient)
        for (kind, name), exponent in monomial:
            if kind != "letter":
                raise OutOfReach
            whole, odd = divmod(exponent, 2)
            powers = ([(("letter", name), whole)] if whole else []) + ([(("root", name), 1)] if odd else [])
            result = self.multiplied(result, _polynomial(tuple(powers)))
        return result

    def _root_of_number(self, value: Fraction) -> Polynomial:
        rest, outside, primes = abs(value.numerator * value.denominator), 1, []
        if rest.bit_length() > 64:
            raise OutOfReach
        prime = 2
        while prime * prime <= rest and prime < MAX_PRIME:
            while rest % (prime * prime) == 0:
                rest, outside = rest // (prime * prime), outside * prime
            if rest % prime == 0:
                rest = rest // prime
                primes.append(prime)
            prime += 1
        if rest >= MAX_PRIME**2:
            raise OutOfReach  # it may be a square
        primes += [rest] if rest > 1 else []
        generators = [(("root", str(prime)), 1) for prime in primes] + ([(_I, 1)] if value < 0 else [])
        return _polynomial(tuple(sorted(generators)), Fraction(outside, value.denominator))

    def _repeated(self, value: Polynomial, times: int) -> Polynomial:
        result = ONE
        for _ in range(times):
            result = self.multiplied(result, value)
        return result

    def added(self, left: Polynomial, right: Polynomial, sign: int = 1) -> Polynomial:
        total = dict(left)
        for monomial, coefficient in right.items():
            total[monomial] = total.get(monomial, Fraction(0)) + sign * coefficient
        return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}

    def multiplied(self, left: Polynomial, right: Polynomial) -> Polynomial:
        if left is ONE or right is ONE:
            return right if left is ONE else left
        self._left -= len(left) * len(right)
        if self._left < 0:
            raise OutOfReach
        total: Polynomial = {}
        for one, its_coefficient in left.items():
            for other, coefficient in right.items():
                monomial, factor = _product(one, other)
                coefficient = coefficient * its_coefficient * factor
                if coefficient.numerator.bit_length() + coefficient.denominator.bit_length() > MAX_BITS:
                    raise OutOfReach
                total[monomial] = total.get(monomial, Fraction(0)) + coefficient
        return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def _polynomial(monomial: Monomial, coefficient: Fraction = Fraction(1)) -> Polynomial:
    return {monomial: coefficient} if coefficient else {}


def _product(left: Monomial, right: Monomial) -> tuple[Monomial, int]:
    """The product of two monomials, and the whole number that comes from its roots and powers of i."""
    if not left or not right:
        return left or right, 1
    powers = dict(left)
    for generator, exponent in right:
        powers[generator] = powers.get(generator, 0) + exponent
    factor = 1
    for generator in [one for one in powers if one[0] == "root" or one == _I]:
        squares, odd = divmod(powers.pop(generator), 2)
        if odd:
            powers[generator] = 1
        if generator == _I:
            factor *= (-1) ** squares
        elif generator[1].isdecimal():
            factor *= int(generator[1]) ** squares
        elif squares:
            letter = ("letter", generator[1])
            powers[letter] = powers.get(letter, 0) + squares
    return tuple(sorted(powers.items())), factor
