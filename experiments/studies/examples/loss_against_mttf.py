"""Plots the rate of losses against the brokers' time to failure.

Run it with `python -m experiments.studies.examples.loss_against_mttf`.
Ten lines from a grid to a data frame, then matplotlib. Writes `loss-against-mttf.png` into the working directory.
"""

from __future__ import annotations

import matplotlib.pyplot as plt

from experiments.studies import Study, run

study = Study(
    name="loss-against-mttf",
    trials=200,
    base={"broker_mttr": "1d", "tail_loss_probability": 0.5},
    sweep={"broker_mttf": "log(5d, 80d, 5)", "min_insync_replicas": [1, 2]},
)
frame = run(study, progress=True).to_pandas()
print(frame[["broker_mttf", "min_insync_replicas", "loss_rate", "loss_rate_ci_low", "loss_rate_ci_high"]])

figure, axes = plt.subplots()
for min_isr, cells in frame.groupby("min_insync_replicas"):
    days, rate = cells["broker_mttf_ms"] / 86_400_000, cells["loss_rate"]
    reach = [rate - cells["loss_rate_ci_low"], cells["loss_rate_ci_high"] - rate]
    axes.errorbar(days, rate, yerr=reach, marker="o", capsize=3, label=f"min ISR {min_isr}")
axes.set(xscale="log", xlabel="MTTF of a broker, days", ylabel="loss events per partition-year")
axes.legend()
figure.savefig("loss-against-mttf.png")
