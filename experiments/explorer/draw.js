/* The diagram of one run on a canvas: lanes, bands, arrows, events, and the tracks of a partition. */

const AXIS = 22;
const HEADINGS = 20;
const STATE_TRACK = 24;
const MARK_TRACK = 46;
const BUCKET = 4;
const HEADS_UP_TO = 1500;
const LABELS_UP_TO = 400;
/* What words are about, in the order in which they get their place. */
const [MARK, STATE, BAND, EVENT] = [0, 1, 2, 3];

class Pane {
  constructor(canvas, run) {
    Object.assign(this, { canvas, context: canvas.getContext("2d") });
    this.take(run);
  }

  /* Draws another run from now on. */
  take(run) {
    this.run = run;
    this.intervals = nodeIntervals(run);
    this.colors = this.groupNumbers();
    this.shapes = run.kinds.map(([role, name]) => shapeOf(role, name));
    this.setPartition(null);
  }

  groupNumbers() {
    this.groupNames = [...new Set(this.run.groups)];
    return Uint8Array.from(this.run.groups, (group) => this.groupNames.indexOf(group));
  }

  setPartition(partition) {
    this.partition = partition;
    this.states = partition === null ? [] : partitionStates(this.run, partition);
    this.marks = partition === null ? [] : highWatermarks(this.run, partition);
  }

  layout(width, lanes) {
    this.lanes = lanes;
    this.laneAt = new Map(lanes.map((lane, row) => [lane, row]));
    this.gutter = width < 600 ? 78 : 118;
    this.laneHeight = width < 600 ? 44 : 54;
    this.top = AXIS + HEADINGS;
    this.bottom = this.top + lanes.length * this.laneHeight;
    this.width = width;
    this.height = this.bottom + (this.partition === null ? 8 : STATE_TRACK + MARK_TRACK + 8);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.stamps = new Int32Array(2 * this.run.nodes.length ** 2 * (Math.ceil(width / BUCKET) + 2));
    this.stamp = 0;
  }

  y(lane) { return this.top + (this.laneAt.get(lane) + 0.5) * this.laneHeight; }
  x(i) { return this.gutter + (this.positions[i] - this.view.from) * this.pixels; }
  xOf(place) { return this.gutter + (place - this.view.from) * this.pixels; }

  /* `shown`: 1 per event that the filter shows. `past`: null, or 1 per event of the highlighted causal past. */
  draw({ positions, scale, view, shown, past, selected, differences, theme }) {
    Object.assign(this, { positions, view, shown, past, theme });
    this.pixels = (this.width - this.gutter) / (view.to - view.from);
    this.from = lowerBound(positions, view.from - 12 / this.pixels);
    this.to = lowerBound(positions, view.to + 12 / this.pixels);
    const context = this.context;
    context.clearRect(0, 0, this.width, this.height);
    context.font = theme.font;
    context.textBaseline = "middle";
    this.words = [];
    this.drawAxis(scale);
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, this.width - this.gutter, this.height);
    context.clip();
    this.drawHeadings();
    this.drawMembership();
    this.drawIntervals();
    this.drawMessages();
    this.drawEvents();
    this.drawLabels();
    this.drawTracks();
    this.drawVerticals(selected, differences);
    this.drawWords();
    context.restore();
    this.drawGutter();
  }

  drawAxis(scale) {
    const { context, theme } = this;
    context.fillStyle = theme["--muted"];
    context.strokeStyle = theme["--grid"];
    context.lineWidth = 1;
    let free = this.gutter;
    const wide = (label) => context.measureText(label).width;
    for (const [place, label] of scale.ticks(this.view, this.width - this.gutter, (text) => wide(text) + 50)) {
      const x = Math.round(this.xOf(place)) + 0.5;
      if (x < this.gutter - 1 || x > this.width) continue;
      this.line(x, AXIS - 5, x, this.bottom);
      const left = Math.max(this.gutter + 2, Math.min(x - wide(label) / 2, this.width - wide(label) - 2));
      if (left < free) continue;
      context.fillText(label, left, AXIS / 2 - 1);
      free = left + wide(label) + 14;
    }
    for (const lane of this.lanes) this.line(this.gutter, this.y(lane), this.width, this.y(lane));
  }

  drawGutter() {
    const { context, theme } = this;
    context.fillStyle = theme["--card"];
    context.fillRect(0, this.top - 4, this.gutter - 2, this.height);
    context.fillStyle = theme["--ink"];
    const short = this.gutter < 100;
    for (const lane of this.lanes) {
      const node = this.run.nodes[lane];
      context.fillText(short ? node.name.replace("controller-", "ctrl-") : node.name, 6, this.y(lane));
    }
    if (this.partition === null) return;
    context.fillStyle = theme["--muted"];
    context.fillText(clip(context, this.partition, this.gutter - 12), 6, this.bottom + STATE_TRACK / 2 + 4);
    context.fillText(short ? "high w." : "high watermark", 6, this.bottom + STATE_TRACK + MARK_TRACK / 2);
  }

  drawHeadings() {
    const { context, theme } = this;
    context.strokeStyle = theme["--heading"];
    context.fillStyle = theme["--muted"];
    context.lineWidth = 1;
    context.setLineDash([2, 4]);
    let free = this.gutter;
    let line = -9;
    for (const [index, text] of this.run.headings) {
      const x = index < this.positions.length ? this.x(index) : this.xOf(this.positions[this.positions.length - 1] ?? 0);
      if (x < this.gutter - 400 || x > this.width) continue;
      if (x - line >= 4) {
        this.line(Math.round(x) + 0.5, AXIS + 4, Math.round(x) + 0.5, this.bottom);
        line = x;
      }
      if (x + 3 < free) continue;
      const label = clip(context, text, Math.min(260, this.width - x - 6));
      context.fillText(label, x + 4, AXIS + HEADINGS / 2);
      free = x + context.measureText(label).width + 16;
    }
    context.setLineDash([]);
  }

  /* Leader, ISR and ELR of the partition, as bands behind the lanes of its replicas. */
  drawMembership() {
    const { context, theme, states } = this;
    if (!states.length) return;
    const style = { leader: ["--leader", 16], isr: ["--isr", 12], elr: ["--elr", 12] };
    for (const lane of this.lanes) {
      const node = this.run.nodes[lane];
      if (node.type !== "broker") continue;
      const y = this.y(lane);
      this.eachRun(states, (state) => `${membership(state, node.id)}${state.leader === node.id ? state.leader_epoch : ""}`, (state, left, right) => {
        const role = membership(state, node.id);
        if (!role) return;
        const [color, height] = style[role];
        context.fillStyle = theme[color];
        context.fillRect(left, y - height / 2, Math.max(right - left, 1), height);
        if (right - Math.max(left, this.gutter) > 92) {
          const label = role === "leader" ? `leader, epoch ${state.leader_epoch}` : role.toUpperCase();
          this.say(BAND, label, Math.max(left, this.gutter) + 5, y + this.laneHeight / 2 - 8, "--band-ink");
        }
      });
    }
  }

  /* Calls `paint` with each visible stretch of states that have the same key. */
  eachRun(states, key, paint) {
    const begin = Math.max(0, states.findIndex((state) => this.positions[state.index] > this.view.from) - 1);
    let open = null;
    for (let k = this.positions[states[states.length - 1].index] <= this.view.from ? states.length - 1 : begin; k < states.length; k++) {
      const left = this.x(states[k].index);
      if (left > this.width) break;
      const found = key(states[k]);
      if (open && open.found === found) continue;
      if (open) paint(open.state, open.left, left);
      open = { found, left, state: states[k] };
    }
    if (open) {
      const after = states.find((state) => state.index > open.state.index && this.x(state.index) > this.width);
      paint(open.state, open.left, after ? Math.min(this.x(after.index), this.width + 4) : this.width + 4);
    }
  }

  drawIntervals() {
    const { context, theme } = this;
    for (const lane of this.lanes) {
      const y = this.y(lane);
      for (const { from, to, state, text } of this.intervals[lane].toSorted((a, b) => (a.state === "cut") - (b.state === "cut"))) {
        const left = Math.max(from === null ? -9 : this.x(from), this.gutter - 9);
        const right = Math.min(to === null ? this.width + 9 : this.x(to), this.width + 9);
        if (right < this.gutter || left > this.width) continue;
        if (state === "cut") {
          context.fillStyle = theme["--fault"];
          context.fillRect(left, y + this.laneHeight / 2 - 4, Math.max(right - left, 1), 2);
          const label = clip(context, text, right - left - 8);
          const end = Math.min(right, this.width) - 4 - context.measureText(label).width;
          if (right - left > 90) this.say(STATE, label, end, y + this.laneHeight / 2 - 11, "--fault");
          continue;
        }
        context.fillStyle = theme[state === "down" ? "--card" : "--paused"];
        context.fillRect(left, y - 11, right - left, 22);
        context.strokeStyle = theme["--fault"];
        context.setLineDash(state === "down" ? [1, 5] : [6, 3]);
        this.line(left, y, right, y);
        context.setLineDash([]);
        if (right - left > 60) {
          this.say(STATE, text, left + 8, y - 8, "--fault");
        }
      }
    }
  }

  /* Arrows from sending to receipt; of those that begin within the same few pixels between two nodes, one is drawn. */
  drawMessages() {
    const { run, positions } = this;
    const lines = this.groupNames.map(() => ({ plain: [], bright: [], lost: [] }));
    const dense = this.to - this.from > 2 * (this.width - this.gutter) / BUCKET;
    this.stamp++;
    const buckets = Math.ceil(this.width / BUCKET) + 2;
    this.drawn = 0;
    const add = (sent, received) => {
      if (!this.shown[sent]) return;
      const source = run.node[sent];
      const target = received >= 0 ? run.node[received] : run.peer(sent);
      if (target < 0 || !this.laneAt.has(source) || !this.laneAt.has(target)) return;
      const x = this.x(sent);
      const bright = this.past !== null && this.past[sent] && received >= 0 && this.past[received];
      if (dense) {
        const pair = 2 * (source * run.nodes.length + target) + Number(bright);
        const bucket = pair * buckets + Math.max(0, Math.min(buckets - 1, Math.floor(x / BUCKET)));
        if (this.stamps[bucket] === this.stamp) return;
        this.stamps[bucket] = this.stamp;
      }
      const color = lines[this.colors[run.kind[sent]]];
      const y = this.y(source);
      const to = this.y(target);
      this.drawn++;
      if (received >= 0) (bright ? color.bright : color.plain).push(x, y, this.x(received), to);
      else color.lost.push(x, y, x + 14, y + (to - y) * 0.35);
    };
    for (let i = Math.max(0, this.from - 2000); i < this.from; i++) {
      if (run.effect[i] >= this.to) add(i, run.effect[i]);
    }
    for (let i = this.from; i < this.to; i++) {
      if (run.cause[i] >= 0) add(run.cause[i], i);
      else if (run.role(i) === "send" && run.effect[i] < 0) add(i, -1);
      else if (run.effect[i] >= this.to) add(i, run.effect[i]);
    }
    this.strokeMessages(lines);
  }

  strokeMessages(lines) {
    const { context, theme, past } = this;
    const heads = this.drawn <= HEADS_UP_TO;
    this.groupNames.forEach((group, number) => {
      const { plain, bright, lost } = lines[number];
      context.strokeStyle = context.fillStyle = theme[GROUP_COLORS[group]];
      context.lineWidth = 1;
      context.globalAlpha = past !== null ? 0.13 : heads ? 0.8 : 0.3;
      this.strokeAll(plain, heads);
      context.setLineDash([3, 3]);
      this.strokeAll(lost, false);
      context.setLineDash([]);
      if (heads) this.crosses(lost);
      context.globalAlpha = heads ? 1 : 0.3;
      context.lineWidth = heads ? 1.8 : 1;
      this.strokeAll(bright, heads);
      context.globalAlpha = 1;
    });
  }

  strokeAll(ends, heads) {
    if (!ends.length) return;
    const { context } = this;
    context.beginPath();
    for (let k = 0; k < ends.length; k += 4) {
      context.moveTo(ends[k], ends[k + 1]);
      context.lineTo(ends[k + 2], ends[k + 3]);
    }
    context.stroke();
    if (!heads) return;
    context.beginPath();
    for (let k = 0; k < ends.length; k += 4) {
      const [x, y, toX, toY] = [ends[k], ends[k + 1], ends[k + 2], ends[k + 3]];
      const length = Math.hypot(toX - x, toY - y);
      if (length < 14) continue;
      const [dx, dy] = [((toX - x) / length) * 6, ((toY - y) / length) * 6];
      context.moveTo(toX, toY);
      context.lineTo(toX - dx - dy * 0.5, toY - dy + dx * 0.5);
      context.lineTo(toX - dx + dy * 0.5, toY - dy - dx * 0.5);
    }
    context.fill();
  }

  crosses(ends) {
    const { context } = this;
    context.beginPath();
    for (let k = 0; k < ends.length; k += 4) {
      const [x, y] = [ends[k + 2], ends[k + 3]];
      context.moveTo(x - 3, y - 3);
      context.lineTo(x + 3, y + 3);
      context.moveTo(x + 3, y - 3);
      context.lineTo(x - 3, y + 3);
    }
    context.stroke();
  }

  drawEvents() {
    const { context, run, theme, past } = this;
    const taken = run.nodes.map(() => -9);
    const takenShape = run.nodes.map(() => -9);
    for (let i = this.from; i < this.to; i++) {
      const lane = run.node[i];
      if (!this.shown[i] || !this.laneAt.has(lane)) continue;
      const shape = this.shapes[run.kind[i]];
      const x = this.x(i);
      const free = shape ? takenShape : taken;
      if (shape !== "alarm" && x - free[lane] < (shape ? 5 : 2)) continue;
      free[lane] = x;
      context.globalAlpha = past === null || past[i] ? 1 : 0.2;
      context.fillStyle = context.strokeStyle = theme[GROUP_COLORS[run.group(i)]];
      if (shape) drawGlyph(context, shape, x, this.y(lane));
      else context.fillRect(x - 1.5, this.y(lane) - 1.5, 3, 3);
    }
    context.globalAlpha = 1;
  }

  /* Words beside the events, where there is room for them. */
  drawLabels() {
    if (this.to - this.from > LABELS_UP_TO) return;
    const { context, run } = this;
    const free = run.nodes.map(() => -9);
    for (let i = this.from; i < this.to; i++) {
      const lane = run.node[i];
      const role = run.role(i);
      if (!this.shown[i] || !this.laneAt.has(lane) || role === "receive" || role === "timer") continue;
      const x = this.x(i);
      if (x < free[lane]) continue;
      const next = run.next[i] >= 0 ? this.x(run.next[i]) : this.width;
      const label = clip(context, role === "send" ? run.name(i) : run.text(i), Math.max(150, next - x - 10));
      this.say(EVENT, label, x + 3, this.y(lane) - 15, "--ink", this.past === null || this.past[i] ? 1 : 0.25);
      free[lane] = x + context.measureText(label).width + 12;
    }
  }

  /* Keeps words to be drawn above everything else; the lower `rank` comes first where two would overlap. */
  say(rank, text, x, y, color, alpha = 1) {
    if (text) this.words.push({ rank, text, x, y, color, alpha, wide: this.context.measureText(text).width });
  }

  /* Draws the words that have room, each with a rim, so that arrows do not cross the letters. */
  drawWords() {
    const { context, theme } = this;
    const placed = [];
    context.lineJoin = "round";
    context.lineWidth = 4;
    context.strokeStyle = theme["--card"];
    for (const word of this.words.sort((a, b) => a.rank - b.rank)) {
      if (placed.some((other) => Math.abs(other.y - word.y) < 13 && other.x < word.x + word.wide + 4 && word.x < other.x + other.wide + 4)) continue;
      placed.push(word);
      context.globalAlpha = word.alpha;
      context.strokeText(word.text, word.x, word.y);
      context.fillStyle = theme[word.color];
      context.fillText(word.text, word.x, word.y);
    }
    context.globalAlpha = 1;
  }

  drawTracks() {
    const { context, theme, states } = this;
    if (this.partition === null) return;
    const top = this.bottom + 4;
    if (states.length) {
      this.eachRun(states, stateText, (state, left, right) => {
        context.fillStyle = theme[state.leader < 0 ? "--offline" : "--track"];
        context.fillRect(left, top, Math.max(right - left - 1, 1), STATE_TRACK - 4);
        const begin = Math.max(left, this.gutter);
        if (right - begin < 30) return;
        context.fillStyle = theme["--band-ink"];
        context.fillText(clip(context, stateText(state), right - begin - 8), begin + 4, top + STATE_TRACK / 2 - 2);
      });
    }
    this.drawHighWatermark();
  }

  /* A step line between the lowest and the highest value of the run; where it falls, it is red. */
  drawHighWatermark() {
    const { context, theme, marks } = this;
    if (!marks.length) return;
    const low = this.bottom + STATE_TRACK + MARK_TRACK;
    const values = marks.map((mark) => mark.value);
    const least = values.reduce((a, b) => Math.min(a, b));
    const most = Math.max(values.reduce((a, b) => Math.max(a, b)), least + 1);
    const level = (value) => low - 4 - ((value - least) / (most - least)) * (MARK_TRACK - 18);
    const begin = Math.max(0, lowerBound(marks.map((mark) => this.positions[mark.index]), this.view.from) - 1);
    const [steps, falls] = [[], []];
    let [x, y, free] = [null, null, -9];
    context.fillStyle = theme["--muted"];
    for (let k = begin; k < marks.length && this.x(marks[k].index) < this.width + 9; k++) {
      const [nextX, nextY] = [Math.max(this.x(marks[k].index), this.gutter), level(marks[k].value)];
      const isFall = y !== null && nextY > y;
      if (x !== null && nextX - x < 1 && !isFall) {
        y = nextY;
        continue;
      }
      if (x !== null) {
        steps.push(x, y, nextX, y);
        (isFall ? falls : steps).push(nextX, y, nextX, nextY);
      }
      if (nextY !== y && nextX > free) {
        const wide = context.measureText(String(marks[k].value)).width;
        context.fillText(String(marks[k].value), Math.min(nextX + 3, this.width - wide - 2), nextY - 7);
        free = nextX + wide + 14;
      }
      [x, y] = [nextX, nextY];
    }
    if (x !== null) steps.push(x, y, this.width, y);
    context.lineWidth = 1.5;
    context.strokeStyle = theme["--data"];
    this.strokeAll(steps, false);
    context.strokeStyle = theme["--alarm"];
    this.strokeAll(falls, false);
  }

  drawVerticals(selected, differences) {
    const { context, theme } = this;
    const mark = (i, color, label, dash) => {
      const x = Math.round(this.x(i)) + 0.5;
      if (x < this.gutter - 1 || x > this.width) return;
      context.strokeStyle = context.fillStyle = theme[color];
      context.lineWidth = 1.5;
      context.setLineDash(dash);
      this.line(x, AXIS, x, this.bottom);
      context.setLineDash([]);
      if (label) {
        const wide = context.measureText(label).width;
        const left = x + 6 + wide > this.width ? x - wide - 6 : x + 6;
        this.say(MARK, label, Math.max(left, this.gutter + 2), this.bottom - 8, color);
      }
    };
    for (const i of this.run.violations) mark(i, "--alarm", this.run.name(i), []);
    for (const { index, what } of differences) mark(index, "--difference", `first different ${what}`, [8, 3]);
    if (selected === null) return;
    mark(selected, "--select", "", [2, 2]);
    if (!this.laneAt.has(this.run.node[selected])) return;
    context.strokeStyle = theme["--select"];
    context.lineWidth = 2.5;
    context.beginPath();
    context.arc(this.x(selected), this.y(this.run.node[selected]), 10, 0, 2 * Math.PI);
    context.stroke();
  }

  line(x, y, toX, toY) {
    this.context.beginPath();
    this.context.moveTo(x, y);
    this.context.lineTo(toX, toY);
    this.context.stroke();
  }

  /* The event at a point of the canvas: a mark on a lane, otherwise the sending of the nearest arrow; -1 if none. */
  eventAt(x, y) {
    let best = -1;
    let least = 12;
    for (let i = this.from; i < this.to; i++) {
      if (!this.shown[i] || !this.laneAt.has(this.run.node[i])) continue;
      const shape = this.shapes[this.run.kind[i]];
      const weight = shape === "alarm" ? -6 : shape ? -3 : 0;
      const distance = Math.hypot(this.x(i) - x, this.y(this.run.node[i]) - y) + weight;
      if (distance < least) [best, least] = [i, distance];
    }
    if (best >= 0) return best;
    least = 6;
    for (let i = this.from; i < this.to; i++) {
      const sent = this.run.cause[i];
      if (sent < 0 || !this.shown[sent] || !this.laneAt.has(this.run.node[i]) || !this.laneAt.has(this.run.node[sent])) continue;
      const distance = toSegment(x, y, this.x(sent), this.y(this.run.node[sent]), this.x(i), this.y(this.run.node[i]));
      if (distance < least) [best, least] = [sent, distance];
    }
    return best;
  }
}
