/* State of the page, and what keys, pointer, wheel and address do to it. */

const VARIABLES = ["--ink", "--muted", "--grid", "--card", "--heading", "--band-ink", "--data", "--control", "--quorum", "--recovery", "--admin", "--fault", "--alarm", "--difference", "--select", "--leader", "--isr", "--elr", "--offline", "--track", "--paused"];
const CLOSEST = 4;

class Explorer {
  constructor(document_) {
    this.runs = document_.runs.map((each, k) => new Run(each, "ab"[k]));
    this.differences = document_.differences;
    this.stage = document.getElementById("stage");
    this.panes = this.runs.map((run) => {
      const canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": `Space-time diagram of ${run.title}; the story below says the same in words` });
      if (this.runs.length > 1) this.stage.append(element("h3", {}, run.title));
      this.stage.append(canvas);
      return new Pane(canvas, run);
    });
    this.overview = document.getElementById("overview");
    this.hiddenNodes = new Set();
    this.hiddenKinds = new Set();
    this.onlyPartition = false;
    this.selected = null;
    this.past = null;
    this.collectNames();
    this.setPartition(this.firstPartition());
    this.setMode("compressed");
    this.readTheme();
    this.buildControls();
    this.listen();
    this.filterEvents();
    this.resize();
    this.openAddress();
  }

  /* Shows a run that has grown in the place of the one before it, with the same filter and partition, up to its end. */
  replace(document_) {
    const span = this.view.to - this.view.from;
    const whole = span >= this.scale.end - this.scale.begin;
    this.runs = document_.runs.map((each, k) => new Run(each, "ab"[k]));
    this.panes.forEach((pane, k) => pane.take(this.runs[k]));
    const known = this.names();
    this.collectNames();
    this.setPartition(this.partitions.includes(this.partition) ? this.partition : this.firstPartition());
    if (known !== this.names()) this.offerNames();
    const hadSelection = this.selected !== null;
    this.selected = this.past = null;
    this.scale = new Scale(this.runs, document.getElementById("mode").value);
    if (whole) this.fit();
    else this.moveTo(this.scale.end - span * 0.98, span);
    this.filterEvents();
    this.resize();
    if (hadSelection) showDetails(this, this.panel);
  }

  names() {
    const kinds = [...this.kindsByGroup].map(([group, found]) => [group, [...found].sort()]);
    return JSON.stringify([this.nodeNames, this.partitions, kinds.sort()]);
  }

  collectNames() {
    this.nodeNames = [...new Set(this.runs.flatMap((run) => run.nodes.map((node) => node.name)))];
    this.partitions = [...new Set(this.runs.flatMap((run) => run.partitions))].sort();
    this.kindsByGroup = new Map();
    for (const [role, name, group] of this.runs.flatMap((run) => run.kinds)) {
      const key = `${role === "receive" ? "send" : role} ${name}`;
      this.kindsByGroup.set(group, (this.kindsByGroup.get(group) ?? new Set()).add(key));
    }
    this.storyRows = new Map(this.runs.map((run) => {
      const rows = [...document.querySelectorAll(`tr[data-run="${run.letter}"]`)];
      return [run, rows.map((row) => ({ index: Number(row.dataset.event), row }))];
    }));
  }

  /* The partition of the first violation, of the loss, or the first one that has states. */
  firstPartition() {
    for (const run of this.runs) {
      for (const i of run.violations) {
        const named = this.partitions.find((partition) => run.text(i).startsWith(`${partition}:`));
        if (named) return named;
      }
    }
    return this.partitions[0] ?? null;
  }

  // -- view ------------------------------------------------------------------------------------------------------------

  setMode(mode) {
    const middle = this.scale ? this.scale.timeAt((this.view.from + this.view.to) / 2) : null;
    this.scale = new Scale(this.runs, mode);
    this.fit();
    if (this.selected) this.reveal();
    else if (middle !== null) this.draw();
  }

  setPartition(partition) {
    this.partition = partition;
    this.panes.forEach((pane) => pane.setPartition(partition));
  }

  fit() {
    const margin = (this.scale.end - this.scale.begin) * 0.01;
    this.view = { from: this.scale.begin - margin, to: this.scale.end + margin };
    this.draw();
  }

  /* Zooms about a share of the width (0 left, 1 right). */
  zoom(factor, share = 0.5) {
    const span = this.view.to - this.view.from;
    const whole = (this.scale.end - this.scale.begin) * 1.1;
    const wanted = Math.max(CLOSEST, Math.min(whole, span * factor));
    this.moveTo(this.view.from + (span - wanted) * share, wanted);
  }

  pan(share) {
    const span = this.view.to - this.view.from;
    this.moveTo(this.view.from + span * share, span);
  }

  moveTo(from, span) {
    const { begin, end } = this.scale;
    const bounded = Math.max(begin - span * 0.5, Math.min(from, end - span * 0.5));
    this.view = { from: bounded, to: bounded + span };
    this.draw();
  }

  /* Moves the view so that the selected event is in it, near enough to tell it from its neighbours. */
  reveal(near = false) {
    const { run, index } = this.selected;
    const place = this.scale.positions[this.runs.indexOf(run)][index];
    let span = this.view.to - this.view.from;
    if (near) span = Math.min(span, 60);
    const inside = place > this.view.from + span * 0.08 && place < this.view.to - span * 0.08;
    if (!inside || near) this.moveTo(place - span / 2, span);
    else this.draw();
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.drawNow();
    });
  }

  drawNow() {
    if (!this.shown || !this.laid) return;
    const began = performance.now();
    this.panes.forEach((pane, k) => {
      const chosen = this.selected && this.selected.run === pane.run;
      pane.draw({
        positions: this.scale.positions[k],
        scale: this.scale,
        view: this.view,
        shown: this.shown[k],
        past: chosen ? this.past : null,
        selected: chosen ? this.selected.index : null,
        differences: this.differences.map(({ what, events }) => ({ what, index: events[k] })).filter(({ index }) => index >= 0),
        theme: this.theme,
      });
    });
    this.drawOverview();
    performance.measure("explorer-frame", { start: began, end: performance.now() });
  }

  /* How many events there are along the whole axis, where the violations are, and the part that is shown. */
  drawOverview() {
    const { overview, theme, scale } = this;
    const context = overview.getContext("2d");
    const [width, height] = [overview.clientWidth, 34];
    if (!this.density) this.density = this.countEvents(width);
    context.clearRect(0, 0, width, height);
    context.fillStyle = theme["--muted"];
    const most = this.density.reduce((a, b) => Math.max(a, b), 1);
    this.density.forEach((count, x) => {
      const tall = count ? 2 + (Math.log1p(count) / Math.log1p(most)) * (height - 6) : 0;
      context.fillRect(x, height - tall, 1, tall);
    });
    const at = (place) => ((place - scale.begin) / (scale.end - scale.begin)) * width;
    const tick = (place, color) => {
      context.fillStyle = theme[color];
      context.fillRect(at(place) - 1, 0, 2, height);
    };
    this.runs.forEach((run, k) => {
      run.violations.forEach((i) => tick(scale.positions[k][i], "--alarm"));
      this.differences.forEach(({ events }) => { if (events[k] >= 0) tick(scale.positions[k][events[k]], "--difference"); });
    });
    context.strokeStyle = theme["--select"];
    context.lineWidth = 2;
    context.strokeRect(at(this.view.from) + 1, 1, Math.max(4, at(this.view.to) - at(this.view.from) - 2), height - 2);
  }

  countEvents(width) {
    const counts = new Uint32Array(width);
    const { begin, end } = this.scale;
    this.runs.forEach((run, k) => {
      for (let i = 0; i < run.size; i++) {
        if (this.shown[k][i]) counts[Math.min(width - 1, Math.floor(((this.scale.positions[k][i] - begin) / (end - begin)) * width))]++;
      }
    });
    return [...counts];
  }

  resize() {
    this.panes.forEach((pane) => {
      const lanes = pane.run.nodes.map((_, lane) => lane).filter((lane) => !this.hiddenNodes.has(pane.run.nodes[lane].name));
      pane.layout(this.stage.clientWidth, lanes);
    });
    const ratio = window.devicePixelRatio || 1;
    this.overview.width = Math.round(this.overview.clientWidth * ratio);
    this.overview.height = Math.round(34 * ratio);
    this.overview.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    this.density = null;
    this.laid = true;
    this.drawNow();
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    this.theme = Object.fromEntries(VARIABLES.map((name) => [name, style.getPropertyValue(name).trim()]));
    this.theme.font = `12px ${style.getPropertyValue("--font")}`;
  }

  // -- filter ----------------------------------------------------------------------------------------------------------

  hide(hidden, names, on) {
    names.forEach((name) => (on ? hidden.add(name) : hidden.delete(name)));
    this.filterEvents();
    this.resize();
  }

  filterEvents() {
    this.shown = this.runs.map((run) => {
      const kinds = run.kinds.map(([role, name]) => !this.hiddenKinds.has(`${role === "receive" ? "send" : role} ${name}`));
      const nodes = run.nodes.map((node) => !this.hiddenNodes.has(node.name));
      const chosen = run.partitions.indexOf(this.partition);
      const sets = run.sets.map((set) => !this.onlyPartition || !set.length || set.includes(chosen));
      return Uint8Array.from({ length: run.size }, (_, i) => Number(kinds[run.kind[i]] && nodes[run.node[i]] && sets[run.about[i]]));
    });
    this.density = null;
    this.draw();
  }

  // -- selection -------------------------------------------------------------------------------------------------------

  select(run, index, { near = false, address = true } = {}) {
    this.selected = { run, index };
    this.past = this.past || run.role(index) === "violation" ? causalPast(run, index) : null;
    if (address) history.replaceState(null, "", `#${run.letter}${index}`);
    this.reveal(near);
    showDetails(this, this.panel);
    markStory(this);
  }

  deselect() {
    this.selected = this.past = null;
    history.replaceState(null, "", location.pathname + location.search);
    showDetails(this, this.panel);
    markStory(this);
    this.draw();
  }

  togglePast() {
    if (!this.selected) return;
    this.past = this.past ? null : causalPast(this.selected.run, this.selected.index);
    showDetails(this, this.panel);
    this.draw();
  }

  /* To the next (1) or previous (-1) event that the filter shows; with `sameNode` on the selected event's node. */
  step(direction, sameNode = false) {
    const run = this.selected?.run ?? this.runs[0];
    const shown = this.shown[this.runs.indexOf(run)];
    let i = this.selected?.index ?? (direction > 0 ? -1 : run.size);
    const node = i >= 0 && i < run.size ? run.node[i] : -1;
    do i += direction;
    while (i >= 0 && i < run.size && !(shown[i] && (!sameNode || node < 0 || run.node[i] === node)));
    if (i >= 0 && i < run.size) this.select(run, i);
  }

  goToViolation() {
    const places = this.runs.flatMap((run) => run.violations.map((i) => [run, i]));
    if (!places.length) return;
    const now = places.findIndex(([run, i]) => this.selected?.run === run && this.selected?.index === i);
    this.select(...places[(now + 1) % places.length], { near: true });
  }

  goToDifference() {
    const places = this.differences.flatMap(({ events }) => events.map((i, k) => [this.runs[k], i]).filter(([, i]) => i >= 0).slice(0, 1));
    if (!places.length) return;
    const now = places.findIndex(([run, i]) => this.selected?.run === run && this.selected?.index === i);
    this.select(...places[(now + 1) % places.length], { near: true });
  }

  openAddress() {
    const [, letter, number] = /^#([ab])(\d+)$/.exec(location.hash) ?? [];
    const run = this.runs.find((each) => each.letter === letter);
    if (run && Number(number) < run.size) this.select(run, Number(number), { near: true, address: false });
    else showDetails(this, this.panel);
  }

  // -- input -----------------------------------------------------------------------------------------------------------

  buildControls() {
    this.panel = document.getElementById("details");
    const actions = {
      first: () => this.select(this.selected?.run ?? this.runs[0], 0),
      previous: () => this.step(-1),
      next: () => this.step(1),
      last: () => { const run = this.selected?.run ?? this.runs[0]; this.select(run, run.size - 1); },
      in: () => this.zoom(0.5),
      out: () => this.zoom(2),
      fit: () => this.fit(),
      violation: () => this.goToViolation(),
      difference: () => this.goToDifference(),
      past: () => this.togglePast(),
    };
    document.querySelectorAll("button[data-action]").forEach((button) => {
      button.addEventListener("click", actions[button.dataset.action]);
    });
    document.querySelector("[data-action=violation]").hidden = !this.runs.some((run) => run.violations.length);
    const modes = document.getElementById("mode");
    modes.append(...Object.entries(MODES).map(([value, label]) => element("option", { value }, label)));
    modes.addEventListener("change", () => { this.setMode(modes.value); this.density = null; this.draw(); });
    const partitions = document.getElementById("partition");
    partitions.addEventListener("change", () => { this.setPartition(partitions.value); this.filterEvents(); this.resize(); showDetails(this, this.panel); });
    document.getElementById("only").addEventListener("change", (event) => { this.onlyPartition = event.target.checked; this.filterEvents(); });
    this.offerNames();
  }

  /* The partitions to choose from, and the nodes and kinds to filter by. */
  offerNames() {
    const partitions = document.getElementById("partition");
    partitions.replaceChildren(...this.partitions.map((name) => element("option", { value: name }, name)));
    partitions.value = this.partition ?? "";
    buildFilter(this, document.getElementById("filter"));
  }

  listen() {
    window.addEventListener("resize", () => this.resize());
    window.addEventListener("hashchange", () => this.openAddress());
    window.addEventListener("keydown", (event) => this.onKey(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.readTheme(); this.draw(); });
    this.panes.forEach((pane) => new Pointer(this, pane));
    const jump = (event) => {
      if (!event.buttons && event.type !== "pointerdown") return;
      const box = this.overview.getBoundingClientRect();
      const span = this.view.to - this.view.from;
      const place = this.scale.begin + ((event.clientX - box.left) / box.width) * (this.scale.end - this.scale.begin);
      this.moveTo(place - span / 2, span);
    };
    this.overview.addEventListener("pointerdown", jump);
    this.overview.addEventListener("pointermove", jump);
    document.querySelectorAll("tr[data-event] a").forEach((link) => {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        const row = link.closest("tr");
        this.select(this.runs.find((run) => run.letter === row.dataset.run), Number(row.dataset.event), { near: true });
      });
    });
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const keys = {
      ArrowRight: () => this.step(1, event.shiftKey),
      ArrowLeft: () => this.step(-1, event.shiftKey),
      PageDown: () => this.pan(0.5),
      PageUp: () => this.pan(-0.5),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.fit(),
      c: () => this.togglePast(),
      v: () => this.goToViolation(),
      d: () => this.goToDifference(),
      Escape: () => this.deselect(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}

/* Mouse, pen and touch on one diagram: drag pans, wheel and pinch zoom, a tap selects. */
class Pointer {
  constructor(app, pane) {
    Object.assign(this, { app, pane, held: new Map(), moved: 0 });
    const { canvas } = pane;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => this.up(event));
  }

  share(x) {
    const box = this.pane.canvas.getBoundingClientRect();
    return (x - box.left - this.pane.gutter) / (box.width - this.pane.gutter);
  }

  wheel(event) {
    event.preventDefault();
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) this.app.pan(sideways / 600);
    else this.app.zoom(Math.exp(event.deltaY * 0.002), this.share(event.clientX));
  }

  down(event) {
    this.pane.canvas.setPointerCapture(event.pointerId);
    this.held.set(event.pointerId, event.clientX);
    if (this.held.size === 1) this.moved = 0;
  }

  move(event) {
    if (!this.held.has(event.pointerId)) {
      this.hover(event);
      return;
    }
    const before = [...this.held.values()];
    this.moved += Math.abs(event.clientX - this.held.get(event.pointerId));
    this.held.set(event.pointerId, event.clientX);
    const after = [...this.held.values()];
    if (after.length === 1) this.app.pan(this.share(before[0]) - this.share(after[0]));
    else {
      const [was, is] = [Math.abs(before[0] - before[1]), Math.abs(after[0] - after[1])];
      if (was > 8 && is > 8) this.app.zoom(was / is, this.share((after[0] + after[1]) / 2));
    }
  }

  up(event) {
    const clicked = this.held.size === 1 && this.moved < 6 && event.type === "pointerup";
    this.held.delete(event.pointerId);
    if (!clicked) return;
    const i = this.at(event);
    if (i >= 0) this.app.select(this.pane.run, i);
    else this.app.deselect();
  }

  at(event) {
    const box = this.pane.canvas.getBoundingClientRect();
    return this.pane.eventAt(event.clientX - box.left, event.clientY - box.top);
  }

  hover(event) {
    const i = this.at(event);
    this.pane.canvas.style.cursor = i >= 0 ? "pointer" : "grab";
    this.pane.canvas.title = i >= 0 ? `${formatTime(this.pane.run.time[i])} ${this.pane.run.nodeName(i)}: ${this.pane.run.text(i)}` : "";
  }
}
