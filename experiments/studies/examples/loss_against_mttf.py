"""Plots the rate of losses against the brokers' time to failure.

Run it with `python -m experiments.studies.examples.loss_against_mttf`.
Ten lines from a grid to a data frame, then Altair. Writes `loss-against-mttf.png` into the working directory.
"""

from __future__ import annotations

import altair as alt

from experiments.studies import Study, run

if __name__ == "__main__":  # an import, as by a tool that lists modules, starts no study
    study = Study(
        name="loss-against-mttf",
        trials=200,
        base={"broker_mttr": "1d", "tail_loss_probability": 0.5},
        sweep={"broker_mttf": "log(5d, 80d, 5)", "min_insync_replicas": [1, 2]},
    )
    frame = run(study, progress=True).to_pandas()
    print(frame[["broker_mttf", "min_insync_replicas", "loss_rate", "loss_rate_ci_low", "loss_rate_ci_high"]])

    points = alt.Chart(frame.assign(days=frame["broker_mttf_ms"] / 86_400_000)).encode(
        x=alt.X("days:Q", title="MTTF of a broker, days").scale(type="log"),
        color=alt.Color("min_insync_replicas:N", title="min ISR"),
    )
    rates = points.mark_line(point=True).encode(y=alt.Y("loss_rate:Q", title="loss events per partition-year"))
    intervals = points.mark_rule().encode(y="loss_rate_ci_low:Q", y2="loss_rate_ci_high:Q")
    (rates + intervals).save("loss-against-mttf.png")
