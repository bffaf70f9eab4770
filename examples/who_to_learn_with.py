"""Two populations that label the same world in opposite ways: by PERM each client finds its own, and learns from it.

python examples/who_to_learn_with.py
"""

from gossamer import Task, fedavg, local, simulate
from gossamer.engines import Options
from gossamer.engines.simulation import Simulation
from gossamer.methods import perm
from gossamer.parts.servers import mixing

CLIENTS, ROUNDS, LR, EPOCHS = 12, 24, 0.5, 3
task = Task.named("two-populations", clients=CLIENTS)

run = Simulation(perm(lr=LR, epochs=EPOCHS, warmup=2, bound=1.0), task, Options(rounds=ROUNDS))
found = run.run(None, lambda record: None).summary()

weights = mixing.square(run.server["mixing"], CLIENTS)
halves = {"first half": slice(0, CLIENTS // 2), "second half": slice(CLIENTS // 2, CLIENTS)}
print("of their weight clients have  " + "  ".join(f"for the {name}" for name in halves))
for name, rows in halves.items():
    shares = {other: float(weights[rows, columns].sum(1).mean()) for other, columns in halves.items()}
    print(f"  in the {name:21}" + "  ".join(f"{share:{len('for the ' + other)}.1%}" for other, share in shares.items()))
print(f"they learn from {found['figures']['mixing']['peers']:.1f} clients in effect, themselves among them")

print(f"{'perm':7} personal accuracy {found['personal_accuracy']:.3f}")
for name, method in (("fedavg", fedavg(lr=LR, epochs=EPOCHS)), ("local", local(lr=LR, epochs=EPOCHS))):
    print(f"{name:7} personal accuracy {simulate(method, task, rounds=ROUNDS).summary()['personal_accuracy']:.3f}")
