/* What holds between events: nodes that are down, paused or cut off, and the state of a partition. */

/* Per lane: intervals { from, to, state, text } between events, for states down, paused and cut; `to` is null where the
   state lasts to the end, `from` where it was so before the first event. */
function nodeIntervals(run) {
  const lanes = run.nodes.map(() => ({ intervals: [], down: undefined, paused: null, cuts: new Map(), cut: null }));
  const close = (lane, interval, i) => {
    if (interval) lane.intervals.push({ ...interval, to: i });
  };
  const recut = (lane, i) => {
    close(lane, lane.cut, i);
    const peers = [...lane.cuts].filter(([, count]) => count > 0).map(([id]) => id);
    const others = run.nodes.filter((node) => node.type !== "client" && run.laneOf.get(node.id) !== lanes.indexOf(lane));
    const names = others.every(({ id }) => peers.includes(id)) ? "all other nodes" : peers.map((id) => run.nodes[run.laneOf.get(id)]?.name ?? id).join(", ");
    lane.cut = peers.length ? { from: i, state: "cut", text: `cut off from ${names}` } : null;
  };
  for (const i of run.eventsOf("change")) {
    const lane = lanes[run.node[i]];
    const change = run.name(i);
    if (change === "started") {
      if (lane.down !== null) close(lane, lane.down ?? { from: null, state: "down", text: "down" }, i);
      lane.down = null;
    } else if (change === "crashed" || change === "exited") {
      close(lane, lane.paused, i);
      lane.paused = null;
      if (!lane.down) lane.down = { from: i, state: "down", text: "down" };
    } else if (change === "paused") {
      lane.paused = { from: i, state: "paused", text: "paused" };
    } else if (change === "resumed") {
      close(lane, lane.paused, i);
      lane.paused = null;
    } else if (change === "cut" || change === "healed") {
      const peer = run.fields(i).peer;
      for (const [end, other] of [[lane, peer], [lanes[run.laneOf.get(peer)], run.nodes[run.node[i]].id]]) {
        if (!end) continue;
        end.cuts.set(other, Math.max(0, (end.cuts.get(other) ?? 0) + (change === "cut" ? 1 : -1)));
        recut(end, i);
      }
    }
  }
  return lanes.map((lane) => {
    for (const open of [lane.down, lane.paused, lane.cut]) close(lane, open, null);
    return lane.intervals;
  });
}

/* The states that the controller committed for a partition: { index, leader, leader_epoch, isr, elr, ... }. */
function partitionStates(run, partition) {
  const found = [];
  let epoch = -1;
  for (const i of eventsAbout(run, partition, "partition")) {
    const state = run.fields(i);
    if (state.partition_epoch <= epoch) continue;
    epoch = state.partition_epoch;
    found.push({ index: i, ...state });
  }
  return found;
}

/* The high watermark along the run: { index, value }, as leaders report it. */
function highWatermarks(run, partition) {
  return [...eventsAbout(run, partition, "high_watermark"), ...eventsAbout(run, partition, "became_leader")]
    .sort((a, b) => a - b)
    .map((i) => ({ index: i, value: run.fields(i).high_watermark }));
}

function eventsAbout(run, partition, kind) {
  const found = [];
  for (let i = 0; i < run.size; i++) {
    if (run.name(i) === kind && run.role(i) === "trace" && run.partitionsOf(i).includes(partition)) found.push(i);
  }
  return found;
}

/* The last item whose event is not after `i`, undefined if there is none. */
function itemAt(items, i) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].index <= i) low = middle + 1;
    else high = middle;
  }
  return items[low - 1];
}

/* What a broker is for a partition in a state: leader, isr, elr, or nothing. */
function membership(state, broker) {
  if (state.leader === broker) return "leader";
  if (state.isr.includes(broker)) return "isr";
  return state.elr.includes(broker) ? "elr" : null;
}

function stateText(state) {
  const set = (brokers) => `{${brokers.join(" ")}}`;
  const parts = [state.leader < 0 ? "no leader" : `leader ${state.leader}`, `epoch ${state.leader_epoch}`, `ISR ${set(state.isr)}`];
  if (state.elr.length) parts.push(`ELR ${set(state.elr)}`);
  if (state.last_known_elr.length) parts.push(`last known ELR ${set(state.last_known_elr)}`);
  if (state.recovering) parts.push("recovering");
  return parts.join(" · ");
}
