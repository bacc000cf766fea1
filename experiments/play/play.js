/* Follows a cluster by server-sent events, and sends what keys and buttons ask for. */

const TOKEN = new URLSearchParams(location.search).get("token") ?? "";
const at = (path) => `${path}?token=${encodeURIComponent(TOKEN)}`;
const byId = (id) => document.getElementById(id);
const braces = (members) => `{${members.join(" ")}}`;

class Play {
  constructor() {
    this.state = this.explorer = null;
    this.sent = Promise.resolve();
    this.node = 0;
    this.partition = null;
    this.listen();
    this.connect();
  }

  // -- connection ------------------------------------------------------------------------------------------------------

  connect() {
    this.source = new EventSource(at("events"));
    this.source.onopen = () => this.say("connection", "Connected. Whoever has this page open steers the same cluster.", false);
    this.source.onmessage = (event) => this.show(JSON.parse(event.data));
    this.source.onerror = () => {
      this.say("connection", "The connection is lost; trying to reach `isray play` again …", true);
      if (this.source.readyState === EventSource.CLOSED) setTimeout(() => this.connect(), 1000);
    };
  }

  say(id, text, isAlarm) {
    byId(id).textContent = text;
    byId(id).classList.toggle(id === "notice" ? "refused" : "lost", isAlarm);
  }

  /* Sends commands one after another, in the order in which they were given. */
  send(command) {
    this.sent = this.sent.then(() => this.post(command));
    return this.sent;
  }

  async post(command) {
    try {
      const response = await fetch(at("act"), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(command) });
      if (!response.ok) this.say("notice", `Refused: ${await response.text()}`, true);
    } catch (error) {
      this.say("notice", `Not done: the connection is lost (${error.message}).`, true);
    }
  }

  // -- state -----------------------------------------------------------------------------------------------------------

  show(state) {
    this.state = state;
    byId("title").textContent = state.title;
    byId("description").textContent = `${state.description} seed ${state.seed}`.trim();
    byId("now").textContent = formatTime(state.now_ms);
    this.say("notice", state.notice, state.notice.startsWith("Refused"));
    document.querySelector("[data-do=run]").textContent = state.running ? "Pause" : "Run";
    document.querySelector("[data-do=run]").setAttribute("aria-pressed", String(state.running));
    const speed = byId("speed");
    if (!speed.options.length) speed.append(...state.speeds.map((each) => element("option", { value: each }, `× ${each}`)));
    if (document.activeElement !== speed) speed.value = state.speed;
    byId("save").href = at("scenario");
    this.showNodes();
    this.showPartitions();
    this.showSentences();
    this.showSteps();
    this.showDiagram();
    document.documentElement.dataset.shown = state.now_ms;
  }

  /* Replaces the children of a place where they differ from what is shown, and keeps the focus on the same one. */
  fill(place, key, make) {
    if (place.dataset.key === key) return;
    place.dataset.key = key;
    const focused = place.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    place.replaceChildren(...make());
    if (focused) place.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  choice(css, name, chosen, choose, ...children) {
    return element("button", { type: "button", role: "radio", class: css, "aria-checked": String(chosen), "data-focus": name, "data-name": name, onclick: choose }, ...children);
  }

  showNodes() {
    const { nodes, cuts, violations } = this.state;
    if (!nodes.some(({ id }) => id === this.node)) this.node = nodes[0].id;
    this.fill(byId("nodes"), JSON.stringify([nodes, this.node]), () =>
      [["brokers", "broker"], ["controllers", "controller"], ["others", "manager"], ["clients", "client"]].map(([label, kind]) => {
        const members = nodes.filter((node) => node.kind === kind);
        if (!members.length) return element("span", { hidden: true });
        return element("div", { class: "lane" }, element("span", {}, label), ...members.map((node) => {
          const made = this.choice("node", node.name, node.id === this.node, () => this.choose(node.id), node.name, element("small", {}, [node.state, node.role].filter(Boolean).join(", ")));
          made.dataset.state = node.state;
          made.dataset.role = node.role;
          return made;
        }));
      })
    );
    const node = this.chosen();
    byId("node-legend").textContent = `Node ${node.name}`;
    const peers = nodes.filter(({ id }) => id !== node.id);
    this.fill(byId("peer"), JSON.stringify([peers.map(({ id }) => id)]), () => [element("option", { value: "rest" }, "all others"), ...peers.map(({ id, name }) => element("option", { value: id }, name))]);
    const links = cuts.map(([source, target]) => `${source} → ${target}`);
    byId("cuts").textContent = [links.length ? `Cut: ${links.join(", ")}.` : "", ...violations.map((text) => `Violated: ${text}.`)].join(" ");
  }

  showPartitions() {
    const { partitions } = this.state;
    byId("stale").hidden = this.state.is_current;
    if (!partitions.some(({ name }) => name === this.partition)) this.partition = partitions[0]?.name ?? null;
    this.fill(byId("partitions"), JSON.stringify([partitions, this.partition]), () => partitions.map((each) => {
      const leader = each.leader < 0 ? "no leader" : `leader ${each.leader}`;
      const facts = [leader, `epochs ${each.leader_epoch}/${each.partition_epoch}`, `ISR ${braces(each.isr)}`, `ELR ${braces(each.elr)}`, `last known ELR ${braces(each.last_known_elr)}`, `min ISR ${each.min_isr}`, `high watermark ${each.high_watermark ?? "unknown"}`];
      const lost = each.lost_acked === null ? "not known which are lost" : `${each.lost_acked} lost`;
      return this.choice("partition", each.name, each.name === this.partition, () => this.choosePartition(each.name),
        element("strong", {}, each.name), ` ${each.leader_recovery_state === "recovering" ? "recovering " : ""}`,
        element("span", { class: "state" }, facts.join(" · ")),
        element("div", {}, ...each.replicas.map((broker) => this.replica(each, broker))),
        element("small", { class: each.lost_acked ? "alarm" : "" }, `${each.acknowledged} records acknowledged, ${lost}`));
    }));
    byId("partition-legend").textContent = `Partition ${this.partition ?? "(none)"}`;
  }

  replica(partition, broker) {
    const role = membership(partition, broker) ?? (partition.last_known_elr.includes(broker) ? "last" : "");
    const name = { leader: "leader", isr: "ISR", elr: "ELR", last: "last known ELR" }[role] ?? "out of sync";
    const end = partition.log_end_offsets[broker];
    return element("span", { class: `replica ${role}` }, `${broker}: ${name}, ${end === undefined ? "down" : `log end ${end}`}`);
  }

  showSentences() {
    const { sentences } = this.state;
    const list = byId("sentences");
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    this.fill(list, JSON.stringify([sentences.length, sentences[sentences.length - 1]]), () => sentences.map(({ time_ms, node, text, rule }) =>
      element("li", {}, element("span", {}, `${formatTime(time_ms)} ${node} `), text, rule ? element("em", {}, ` (${rule})`) : null)));
    if (follows) list.scrollTop = list.scrollHeight;
  }

  showSteps() {
    const { done, ahead } = this.state;
    const list = byId("steps");
    this.fill(list, JSON.stringify([done, ahead]), () => [
      ...done.map(({ text, detail }, k) => element("li", {}, element("button", { type: "button", "data-focus": `step ${k}`, title: "Rewind to the state before this step", onclick: () => this.send({ do: "rewind", count: k }) }, `↶ ${k + 1}`), element("span", {}, detail ? `${text}: ${detail}` : text))),
      ...ahead.map((text, k) => element("li", { class: "ahead" }, `${k ? "then" : "next"}: ${text}`)),
    ]);
    const last = list.children[done.length - 1];
    if (last) list.scrollTop = last.offsetTop - list.offsetTop - list.clientHeight / 2;
  }

  showDiagram() {
    const { diagram } = this.state;
    if (!diagram.runs[0].time.length) return;
    if (this.explorer) this.explorer.replace(diagram);
    else {
      byId("explorer").hidden = false;
      byId("loading").hidden = true;
      this.explorer = new Explorer(diagram);
    }
  }

  // -- actions ---------------------------------------------------------------------------------------------------------

  chosen() { return this.state.nodes.find(({ id }) => id === this.node); }

  choose(id) {
    this.node = id;
    this.showNodes();
  }

  choosePartition(name) {
    this.partition = name;
    this.showPartitions();
  }

  /* The next or previous one of a list after the one that is chosen. */
  next(list, now, direction) {
    return list[(list.indexOf(now) + direction + list.length) % list.length];
  }

  act(name) {
    const made = this.stepFor(name);
    if (typeof made === "string") this.say("notice", `Refused: ${made}`, true);
    else this.send({ do: "act", step: made });
  }

  /* The step of an action, or why there is none. */
  stepFor(name) {
    const node = this.chosen();
    if (["crash", "start", "shutdown", "pause", "resume"].includes(name)) {
      if (!node.step) return `${node.name} is a client, which cannot be killed or stopped here; choose another node`;
      return { [name]: name === "crash" ? { ...node.step, lose: byId("lose").value } : node.step };
    }
    if (name === "heal-all") return { heal: "all" };
    if (name === "cut" || name === "heal") {
      const peer = byId("peer").value;
      const side = ({ id, kind, step }) => (kind === "manager" ? Object.keys(step)[0] : id);
      return { [name]: { between: [side(node), peer === "rest" ? "rest" : side(this.state.nodes.find(({ id }) => id === Number(peer)))] } };
    }
    const chosen = this.state.partitions.find((each) => each.name === this.partition);
    if (!chosen) return "there is no partition";
    return this.partitionStep(name, { topic: chosen.topic, partition: chosen.partition });
  }

  partitionStep(name, place) {
    const acks = byId("acks").value;
    if (name === "produce") return { produce: { ...place, records: Number(byId("records").value), acks: acks === "all" ? acks : Number(acks) } };
    if (name === "consume") return { consume: place };
    if (name === "elect") return { elect: { ...place, type: byId("election").value } };
    if (name === "min-isr") return { configure: { topic: place.topic, config: { "min.insync.replicas": Number(byId("min-isr").value) } } };
    const replicas = byId("replicas").value.split(/[\s,]+/).filter(Boolean);
    if (!replicas.length || !replicas.every((each) => /^\d+$/.test(each))) return `found replicas "${byId("replicas").value}"; allowed: ids of brokers, such as 0, 1, 2`;
    return { reassign: { ...place, replicas: replicas.map(Number) } };
  }

  do(name) {
    const commands = {
      run: { do: this.state.running ? "pause" : "run" },
      step: { do: "step" },
      back: { do: "back" },
      start: { do: "rewind", count: 0 },
    };
    this.send(commands[name]);
  }

  listen() {
    document.querySelectorAll("button[data-do]").forEach((button) => button.addEventListener("click", () => this.state && this.do(button.dataset.do)));
    document.querySelectorAll("button[data-act]").forEach((button) => button.addEventListener("click", () => this.state && this.act(button.dataset.act)));
    byId("speed").addEventListener("change", (event) => this.send({ do: "speed", speed: Number(event.target.value) }));
    byId("load").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      if (file) await this.send({ do: "load", text: await file.text() });
      event.target.value = "";
    });
    byId("save").addEventListener("click", (event) => {
      if (this.state?.done.length) return;
      event.preventDefault();
      this.say("notice", "Refused: nothing has been done yet, and a scenario has one step or more", true);
    });
    window.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    const { tagName } = event.target;
    if (!this.state || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(tagName)) return;
    if (event.key === " " && /^(BUTTON|A|SUMMARY)$/.test(tagName)) return;
    const nodes = this.state.nodes.map(({ id }) => id);
    const partitions = this.state.partitions.map(({ name }) => name);
    const acts = { k: "crash", s: "start", t: "shutdown", p: "pause", r: "resume", x: "cut", h: "heal", w: "produce", g: "consume", e: "elect", a: "reassign", i: "min-isr" };
    const others = {
      " ": () => this.do("run"),
      ".": () => this.do("step"),
      ",": () => this.do("back"),
      Home: () => this.do("start"),
      n: () => this.choose(this.next(nodes, this.node, 1)),
      b: () => this.choose(this.next(nodes, this.node, -1)),
      m: () => partitions.length && this.choosePartition(this.next(partitions, this.partition, 1)),
    };
    const found = acts[event.key] ? () => this.act(acts[event.key]) : others[event.key];
    if (!found) return;
    event.preventDefault();
    found();
  }
}

window.play = new Play();
