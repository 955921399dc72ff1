"""Random statements on Scalars."""

from __future__ import annotations

from tests.emulator.support.random_values import DTYPES, Values


class ScalarStatements:
    """Elements of tensors, and arithmetic on them."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.tik = values.tik

    def element(self) -> None:
        """A Scalar read from a tensor, or written into one."""
        values = self.values
        dtype = values.pick(DTYPES)
        tensor = values.tensor(dtype)
        index = values.integer()
        if values.chance(0.5):
            value = self.tik.Scalar(dtype, values.name("s"))
            value.set_as(tensor[index])
            if dtype.startswith("float"):
                values.floats.append((dtype, value))
            else:
                wide = self.tik.Scalar("int32", values.name("w"))
                wide.set_as(value & 255)
                values.integers.append(wide)
        else:
            value = self.tik.Scalar(dtype, values.name("s"), init_value=values.upto(-50, 50))
            tensor[index].set_as(value)

    def arithmetic(self) -> None:
        """A new integer, not negative, from two."""
        values = self.values
        value = self.tik.Scalar("int32", values.name("i"))
        one, other = values.integer(), values.integer()
        operator = values.pick(("+", "*", "/", "%", "&", "|", ">>"))
        if operator in "/%":
            other = other + 1
        elif operator == ">>":
            other = values.upto(0, 4)
        value.set_as(eval(f"one {'//' if operator == '/' else operator} other") if operator != "+" else one + other)
        with self.tik.if_scope(value > 1000):
            value.set_as(value % 1000)
        values.integers.append(value)

    def signed(self) -> None:
        """Arithmetic on values of any sign, which is stored."""
        values = self.values
        tensor = values.tensor("int32")
        value = self.tik.Scalar("int32", values.name("v"))
        value.set_as(tensor[values.integer()])
        for _ in range(3):
            operator, number = values.pick(("+", "-", "*", "//", "%", "&", "|", "<<", ">>")), values.upto(1, 9)
            if operator in ("//", "%", "*") and values.chance(0.5):
                number = -number
            value.set_as(eval(f"value {operator} number"))
        tensor[values.integer()].set_as(value)
