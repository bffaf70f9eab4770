"""A method of your own, from the parts that are there.

    gossamer run examples/own_recipe.py:my_recipe --momentum 0.5 --equal
    gossamer methods examples/own_recipe.py:my_recipe

Every parameter becomes a flag. It needs a type and should have a default. What it means is read from the docstring.
"""

from gossamer import SGD, Dense, Exponential, Full, Mean, Method, compose


def my_recipe(
    lr: float = 0.1, epochs: int = 2, momentum: float = 0.9, decay: float = 0.99, equal: bool = False
) -> Method:
    """Federated averaging with momentum and a falling learning rate.

    decay: what each round multiplies the learning rate by
    equal: every client counts the same, however many samples it has
    """
    solver = SGD(lr, epochs, batch=16, momentum=momentum, schedule=Exponential(decay))
    return compose(Full(), solver, Dense(), Mean("uniform" if equal else "samples"))


if __name__ == "__main__":
    print("run it with: gossamer run examples/own_recipe.py:my_recipe --momentum 0.5 --equal")
