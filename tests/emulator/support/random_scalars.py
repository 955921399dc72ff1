"""Random statements on Scalars."""

from __future__ import annotations

from tests.emulator.support.random_values import DTYPES, Values


class ScalarStatements(Values):
    """Elements of tensors, and arithmetic on them."""

    def element(self) -> None:
        """Read a Scalar from a tensor, or write it into one."""
        dtype = self.pick(DTYPES)
        tensor = self.tensor(dtype)
        index = self.integer()
        if self.chance(0.5):
            value = self.tik.Scalar(dtype, self.name("s"))
            value.set_as(tensor[index])
            if dtype.startswith("float"):
                self.floats.append((dtype, value))
            else:
                wide = self.tik.Scalar("int32", self.name("w"))
                wide.set_as(value & 255)
                self.integers.append(wide)
        else:
            value = self.tik.Scalar(dtype, self.name("s"), init_value=self.upto(-50, 50))
            tensor[index].set_as(value)

    def arithmetic(self) -> None:
        """Make a new integer, not negative, from two."""
        value = self.tik.Scalar("int32", self.name("i"))
        one, other = self.integer(), self.integer()
        operator = self.pick(("+", "*", "/", "%", "&", "|", ">>"))
        if operator in "/%":
            other = other + 1
        elif operator == ">>":
            other = self.upto(0, 4)
        value.set_as(eval(f"one {'//' if operator == '/' else operator} other") if operator != "+" else one + other)
        with self.tik.if_scope(value > 1000):
            value.set_as(value % 1000)
        self.integers.append(value)

    def signed(self) -> None:
        """Compute with values of any sign, and store the result."""
        tensor = self.tensor("int32")
        value = self.tik.Scalar("int32", self.name("v"))
        value.set_as(tensor[self.integer()])
        for _ in range(3):
            operator, number = self.pick(("+", "-", "*", "//", "%", "&", "|", "<<", ">>")), self.upto(1, 9)
            if operator in ("//", "%", "*") and self.chance(0.5):
                number = -number
            value.set_as(eval(f"value {operator} number"))
        tensor[self.integer()].set_as(value)
