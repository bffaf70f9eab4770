"""Flower's simulation on Ray, the only backend it ships: two client actors, one core and one thread each."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# (the simulator is absent when types are checked)

import json
import os
import sys
from pathlib import Path

CORES = 2


def main() -> None:
    # Actors are separate processes: they import the app by name, and read the setting from the environment.
    os.environ |= {
        "BENCH_SETTING": sys.argv[1],
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    from flwr.simulation import run_simulation
    from workloads import WORKLOADS

    from systems import flower_app

    run_simulation(
        flower_app.server_app,
        flower_app.client_app,
        num_supernodes=WORKLOADS[json.loads(sys.argv[1])["workload"]].clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": CORES, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
