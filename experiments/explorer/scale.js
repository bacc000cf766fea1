/* From time to a position along the axis and back. All runs of the page share one scale. */

const MODES = {
  compressed: "Compressed time",
  real: "True time",
  steps: "One step per event",
};

/* Compressed: the distance of two moments is 1 + log2(1 + ms between them), so that what happens within milliseconds and
   what happens days later fit on one axis. Steps: every event has a position of its own. */
class Scale {
  constructor(runs, mode) {
    this.mode = mode;
    this.positions = runs.map((run) => new Float64Array(run.size));
    this.times = [];
    this.places = [];
    const heads = runs.map(() => 0);
    let place = 0;
    let last = null;
    for (;;) {
      let first = -1;
      for (let r = 0; r < runs.length; r++) {
        if (heads[r] < runs[r].size && (first < 0 || runs[r].time[heads[r]] < runs[first].time[heads[first]])) first = r;
      }
      if (first < 0) break;
      const time = runs[first].time[heads[first]];
      const gap = last === null ? 0 : time - last;
      if (mode === "real") place = time;
      else if (last !== null && (gap > 0 || mode === "steps")) {
        place += mode === "steps" ? 1 : 1 + Math.log2(1 + gap);
      }
      if (last === null || gap > 0 || mode === "steps") {
        this.times.push(time);
        this.places.push(place);
      }
      this.positions[first][heads[first]++] = place;
      last = time;
    }
    this.begin = this.places[0] ?? 0;
    this.end = Math.max(this.places[this.places.length - 1] ?? 1, this.begin + 1);
  }

  timeAt(place) { return interpolate(this.places, this.times, place); }
  placeAt(time) { return interpolate(this.times, this.places, time); }

  /* [position, label] of evenly spaced ticks of a view; `wide` is the width of a label in pixels. */
  ticks(view, width, wide) {
    const count = Math.max(1, Math.floor(width / wide(formatTime(this.timeAt(view.to)))));
    const found = [];
    let before = null;
    for (let k = 0; k <= count; k++) {
      const time = Math.round(this.timeAt(view.from + ((view.to - view.from) * k) / count));
      if (time === before) continue;
      before = time;
      found.push([this.placeAt(time), formatTime(time)]);
    }
    return found;
  }
}

function interpolate(from, to, value) {
  const right = lowerBound(from, value);
  if (right <= 0) return to[0] ?? 0;
  if (right >= from.length) return to[to.length - 1];
  const left = right - 1;
  return to[left] + ((value - from[left]) / (from[right] - from[left])) * (to[right] - to[left]);
}

/* The first place in an ascending array whose value is at least `value`. */
function lowerBound(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function formatTime(ms) {
  if (Math.abs(ms) < 3_600_000) return `${(ms / 1000).toFixed(3)} s`;
  const pad = (value, digits) => String(Math.floor(value)).padStart(digits, "0");
  const days = Math.floor(ms / 86_400_000);
  const clock = `${pad((ms / 3_600_000) % 24, 2)}:${pad((ms / 60_000) % 60, 2)}:${pad((ms / 1000) % 60, 2)}.${pad(ms % 1000, 3)}`;
  return days ? `${days} d ${clock}` : clock;
}
