/* Happens-before: within a node by order, between nodes from the sending of a message to its receipt. */

/* For each event 1 if it is `index` or happened before it, else 0. The past on a node is always a prefix of its events,
   so each event is visited once. */
function causalPast(run, index) {
  const past = new Uint8Array(run.size);
  const reached = new Int32Array(run.nodes.length).fill(-1);
  const waiting = [index];
  while (waiting.length) {
    const newest = waiting.pop();
    const lane = run.node[newest];
    const known = reached[lane];
    if (known >= newest) continue;
    reached[lane] = newest;
    for (let i = newest; i > known && i >= 0; i = run.previous[i]) {
      past[i] = 1;
      if (run.cause[i] >= 0) waiting.push(run.cause[i]);
    }
  }
  return past;
}
