"""Clients of five widths in one run: what each holds, trains and sends, beside clients that hold everything.

python examples/thin_clients.py
"""

from gossamer import Task, fedavg, simulate, submodel_rolling
from gossamer.engines import Options
from gossamer.engines.simulation import Simulation
from gossamer.fleet.capacity import SHARES

ROUNDS = 10
task = Task.named("digits", model="mlp", clients=20)
thin = submodel_rolling(epochs=2, over="holders")
full = fedavg(epochs=2, weights="uniform")

simulation = Simulation(thin, task, Options(rounds=1))
print("capacity  entries held")
for client, share in enumerate(SHARES):
    clock, key = simulation.clock(0, client), simulation.round_key(0)
    part = simulation.method.training.view.part(simulation.model(), clock, key)
    print(f"{share:8}  {part.layout(simulation.model()).size:,}")

for name, method in (("all", full), ("five widths", thin)):
    found = simulate(method, task, rounds=ROUNDS).summary()
    sent, done = found["bytes_up"] / 1e6, found["flops"] / 1e9
    print(f"{name:12} accuracy {found['accuracy']:.3f}, {sent:.1f} MB up, {done:.1f} GFLOP")
