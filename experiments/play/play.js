/* Follows a cluster by server-sent events, and sends what keys and buttons ask for. */

const TOKEN = new URLSearchParams(location.search).get("token") ?? "";
const at = (path) => `${path}?token=${encodeURIComponent(TOKEN)}`;
const byId = (id) => document.getElementById(id);
const braces = (members) => `{${members.join(" ")}}`;

class Play {
  constructor() {
    this.state = this.explorer = null;
    this.refusal = "";
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
      this.say("connection", "The connection is lost; trying to reach the server again …", true);
      if (this.source.readyState === EventSource.CLOSED) setTimeout(() => this.connect(), 1000);
    };
  }

  say(id, text, isAlarm) {
    byId(id).textContent = text;
    byId(id).classList.toggle(id === "notice" ? "refused" : "lost", isAlarm);
  }

  /* Shows what this page itself refuses, until the next command. */
  refuse(text) {
    this.refusal = text;
    this.say("notice", text, true);
  }

  /* Sends commands one after another, in the order in which they were given. */
  send(command) {
    this.sent = this.sent.then(() => this.post(command));
    return this.sent;
  }

  async post(command) {
    this.refusal = "";
    try {
      const response = await fetch(at("act"), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(command) });
      if (!response.ok) this.refuse(`Refused: ${await response.text()}`);
    } catch (error) {
      this.refuse(`Not done: the connection is lost (${error.message}).`);
    }
  }

  // -- state -----------------------------------------------------------------------------------------------------------

  show(state) {
    this.state = state;
    byId("kicker").textContent = document.title = `isray ${state.kind}`;
    const { lesson, lessons } = state;
    byId("title").textContent = lesson ? `Lesson ${1 + lessons.findIndex(({ name }) => name === lesson.name)} of ${lessons.length}` : state.title;
    byId("description").textContent = [lesson ? "" : state.description, state.seed === undefined ? "" : `seed ${state.seed}`].join(" ").trim();
    byId("now").textContent = formatTime(state.now_ms);
    const notice = this.refusal || state.notice;
    this.say("notice", notice, Boolean(this.refusal) || notice.startsWith("Refused"));
    document.querySelector("[data-do=run]").textContent = state.running ? "Pause" : "Run";
    document.querySelector("[data-do=run]").setAttribute("aria-pressed", String(state.running));
    const speed = byId("speed");
    if (!speed.options.length) speed.append(...state.speeds.map((each) => element("option", { value: each }, `× ${each}`)));
    if (document.activeElement !== speed) speed.value = state.speed;
    byId("save").href = at("scenario");
    if (state.ended) this.say("connection", `The cluster is gone: ${state.ended}`, true);
    this.showUnavailable();
    this.showLesson();
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

  /* Controls of what this cluster never does, with the reason. */
  showUnavailable() {
    const { unavailable } = this.state;
    for (const button of document.querySelectorAll("[data-do], [data-needs]")) {
      const why = unavailable[button.dataset.do ?? button.dataset.needs];
      button.setAttribute("aria-disabled", String(Boolean(why)));
      button.dataset.title ??= button.title;
      button.title = why ?? button.dataset.title;
    }
    byId("speed").disabled = Boolean(unavailable.speed);
    byId("load").disabled = byId("seed").disabled = Boolean(unavailable.load);
    byId("menu").hidden = Boolean(unavailable.lesson);
    byId("unavailable").textContent = [...new Set(Object.values(unavailable))].join(" ");
  }

  refusedHere(name) {
    const why = this.state.unavailable[name];
    if (why) this.refuse(`Refused: ${why}`);
    return Boolean(why);
  }

  // -- lessons ---------------------------------------------------------------------------------------------------------

  /* Paragraphs of a text, with code in back quotes. */
  paragraphs(text) {
    return text.trim().split(/\n\s*\n/).map((paragraph) => element("p", {}, ...paragraph.split("`").map((part, k) => (k % 2 ? element("code", {}, part) : part))));
  }

  showLesson() {
    const { lesson, lessons } = this.state;
    this.fill(byId("lessons"), JSON.stringify([lessons, lesson?.name]), () => [{ name: "", title: "Free play, without a lesson" }, ...lessons].map(({ name, title }) =>
      element("li", {}, element("button", { type: "button", "data-focus": `lesson ${name}`, "data-lesson": name, "aria-current": String((lesson?.name ?? "") === name), onclick: () => this.begin(name) }, title))));
    const place = byId("lesson");
    place.hidden = !lesson;
    place.parentElement.classList.toggle("with-lesson", Boolean(lesson));
    this.fill(place, JSON.stringify(lesson), () => (lesson ? this.lessonParts(lesson, lessons) : []));
  }

  lessonParts(lesson, lessons) {
    const opened = new Set([...byId("lesson").querySelectorAll("details[open]")].map(({ dataset }) => dataset.hint));
    const isDone = lesson.goals.every(({ reached }) => reached);
    const next = lessons[lessons.findIndex(({ name }) => name === lesson.name) + 1];
    const button = (focus, text, onclick) => element("button", { type: "button", "data-focus": focus, onclick }, text);
    const parts = [
      element("h2", { tabindex: "-1", "data-focus": "title" }, lesson.title),
      ...this.paragraphs(lesson.text),
      element("h3", {}, "Task"),
      ...this.paragraphs(lesson.task),
      element("ul", { class: "goals", "aria-live": "polite" }, ...lesson.goals.map(({ text, reached }) => element("li", { class: reached ? "reached" : "" }, `${reached ? "✓" : "○"} ${text}`, element("span", { class: "unseen-text" }, reached ? " (reached)" : "")))),
      ...lesson.hints.map((hint, k) => {
        const details = element("details", { "data-hint": `${lesson.name} ${k}` }, element("summary", { "data-focus": `hint ${k}` }, `Hint ${k + 1}`), ...this.paragraphs(hint));
        details.open = opened.has(details.dataset.hint);
        return details;
      }),
      element("div", { class: "row" }, button("answer", "show the answer, step by step", () => this.send({ do: "answer" })), ...(isDone && next ? [button("next", `next lesson: ${next.title}`, () => this.begin(next.name))] : [])),
    ];
    if (isDone) parts.splice(parts.length - 1, 0, element("div", { class: "reached-all", role: "status" }, element("strong", {}, "All reached."), ...this.paragraphs(lesson.conclusion)));
    return parts;
  }

  async begin(name) {
    byId("menu").open = false;
    await this.send({ do: "lesson", name });
    document.activeElement?.blur();
    window.scrollTo(0, 0);
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
    this.fill(byId("peer"), JSON.stringify([peers.map(({ id }) => id)]), () => [element("option", { value: "rest" }, "all others"), ...(nodes.some(({ kind }) => kind === "controller") ? [element("option", { value: "controllers" }, "all controllers")] : []), ...peers.map(({ id, name }) => element("option", { value: id }, name))]);
    const links = cuts.map(([source, target]) => `${source} → ${target}`);
    byId("voters").textContent = this.state.voters.length ? `Voters of the quorum: ${braces(this.state.voters)}.` : "";
    byId("loads").textContent = this.state.loads.map((text) => `In the background, ${text}.`).join(" ");
    byId("cuts").textContent = [links.length ? `Cut: ${links.join(", ")}.` : "", ...violations.map((text) => `Violated: ${text}.`)].join(" ");
  }

  showPartitions() {
    const { partitions } = this.state;
    byId("stale").hidden = this.state.is_current;
    if (!partitions.some(({ name }) => name === this.partition)) this.partition = partitions[0]?.name ?? null;
    this.fill(byId("partitions"), JSON.stringify([partitions, this.partition]), () => partitions.map((each) => {
      const leader = each.leader < 0 ? "no leader" : `leader ${each.leader}`;
      const facts = [leader, `epochs ${each.leader_epoch}/${each.partition_epoch}`, `ISR ${braces(each.isr)}`, `ELR ${braces(each.elr)}`, `last known ELR ${braces(each.last_known_elr)}`, `min ISR ${each.min_isr ?? "unknown"}`, `high watermark ${each.high_watermark ?? "unknown"}`];
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
    const { done, ahead, unavailable } = this.state;
    const list = byId("steps");
    this.fill(list, JSON.stringify([done, ahead]), () => [
      ...done.map(({ text, detail }, k) => element("li", {}, element("button", { type: "button", "data-focus": `step ${k}`, "aria-disabled": String(Boolean(unavailable.rewind)), title: unavailable.rewind ?? "Rewind to the state before this step", onclick: () => this.refusedHere("rewind") || this.send({ do: "rewind", count: k }) }, `↶ ${k + 1}`), element("span", {}, detail ? `${text}: ${detail}` : text))),
      ...ahead.map((text, k) => element("li", { class: "ahead" }, `${k ? "then" : "next"}: ${text}`)),
    ]);
    const last = list.children[done.length - 1];
    if (last) list.scrollTop = last.offsetTop - list.offsetTop - list.clientHeight / 2;
  }

  showDiagram() {
    const { diagram, events } = this.state;
    if (!diagram.runs[0].time.length || (events !== undefined && events === this.drawn)) return;
    this.drawn = events;
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
    if (typeof made === "string") this.refuse(`Refused: ${made}`);
    else this.send({ do: "act", step: made });
  }

  /* The step of an action, or why there is none. */
  stepFor(name) {
    const node = this.chosen();
    if (["crash", "start", "shutdown", "pause", "resume"].includes(name)) {
      if (!node.step) return `${node.name} is a client, which cannot be killed or stopped here; choose another node`;
      const lose = byId("lose").value;
      return { [name]: name === "crash" ? { ...node.step, lose: lose === "records" ? this.number("lost-records") : lose } : node.step };
    }
    if (name === "flush") return node.kind === "broker" ? { flush: node.step } : `${node.name} has no logs of partitions; choose a broker`;
    if (name === "add-voter" || name === "remove-voter") return node.kind === "controller" ? { [name.replace("-", "_")]: node.step } : `${node.name} does not vote; choose a controller`;
    if (name === "heal-all") return { heal: "all" };
    if (name === "cut" || name === "heal") return { [name]: this.links(node) };
    const chosen = this.state.partitions.find((each) => each.name === this.partition);
    if (!chosen) return "there is no partition";
    return this.partitionStep(name, { topic: chosen.topic, partition: chosen.partition });
  }

  number(id) { return Number(byId(id).value); }

  /* The links between the chosen node and the other side, as the steps `cut` and `heal` name them. */
  links(node) {
    const peer = byId("peer").value;
    const side = ({ id, kind, step }) => (kind === "manager" ? Object.keys(step)[0] : id);
    const [here, there] = [side(node), /^\d+$/.test(peer) ? side(this.state.nodes.find(({ id }) => id === Number(peer))) : peer];
    return { both: { between: [here, there] }, from: { from: here, to: there }, to: { from: there, to: here } }[byId("direction").value];
  }

  partitionStep(name, place) {
    const chosen = byId("acks").value;
    const acks = chosen === "all" ? chosen : Number(chosen);
    if (name === "produce") return { produce: { ...place, records: this.number("records"), acks } };
    if (name === "load") return { load: { ...place, rate: this.number("rate"), duration: `${this.number("seconds")}s`, acks } };
    if (name === "cancel") return { reassign: { ...place, cancel: true } };
    if (name === "consume") return { consume: place };
    if (name === "elect") {
      const type = byId("election").value;
      if (type !== "designation") return { elect: { ...place, type } };
      const { id, kind, name: node } = this.chosen();
      return kind === "broker" ? { elect: { ...place, type, desired_leader: id } } : `${node} cannot lead; choose a broker`;
    }
    if (name === "min-isr") return { configure: { topic: place.topic, config: { "min.insync.replicas": Number(byId("min-isr").value) } } };
    const replicas = byId("replicas").value.split(/[\s,]+/).filter(Boolean);
    if (!replicas.length || !replicas.every((each) => /^\d+$/.test(each))) return `found replicas "${byId("replicas").value}"; allowed: ids of brokers, such as 0, 1, 2`;
    return { reassign: { ...place, replicas: replicas.map(Number) } };
  }

  do(name) {
    if (this.refusedHere(name)) return;
    const commands = {
      run: { do: this.state.running ? "pause" : "run" },
      step: { do: "step" },
      back: { do: "back" },
      rewind: { do: "rewind", count: 0 },
    };
    this.send(commands[name]);
  }

  listen() {
    document.querySelectorAll("button[data-do]").forEach((button) => button.addEventListener("click", () => this.state && this.do(button.dataset.do)));
    document.querySelectorAll("button[data-act]").forEach((button) => button.addEventListener("click", () => this.state && this.act(button.dataset.act)));
    byId("speed").addEventListener("change", (event) => this.send({ do: "speed", speed: Number(event.target.value) }));
    byId("load").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      if (file) await this.send({ do: "load", text: await file.text(), seed: this.number("seed") });
      event.target.value = "";
    });
    byId("save").addEventListener("click", (event) => {
      if (this.state?.done.length) return;
      event.preventDefault();
      this.refuse("Refused: nothing has been done yet, and a scenario has one step or more");
    });
    window.addEventListener("keydown", (event) => this.onKey(event));
  }

  openMenu() {
    if (this.refusedHere("lesson")) return;
    byId("menu").open = !byId("menu").open;
    if (byId("menu").open) byId("lessons").querySelector("button").focus();
  }

  onKey(event) {
    const { tagName } = event.target;
    if (!this.state || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(tagName)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === " " && /^(BUTTON|A|SUMMARY)$/.test(tagName)) return;
    const nodes = this.state.nodes.map(({ id }) => id);
    const partitions = this.state.partitions.map(({ name }) => name);
    const acts = { k: "crash", s: "start", t: "shutdown", p: "pause", r: "resume", x: "cut", h: "heal", w: "produce", g: "consume", e: "elect", a: "reassign", i: "min-isr", l: "load", c: "cancel", f: "flush" };
    const others = {
      " ": () => this.do("run"),
      ".": () => this.do("step"),
      ",": () => this.do("back"),
      Home: () => this.do("rewind"),
      n: () => this.choose(this.next(nodes, this.node, 1)),
      b: () => this.choose(this.next(nodes, this.node, -1)),
      o: () => this.openMenu(),
      Escape: () => (byId("menu").open = false),
      m: () => partitions.length && this.choosePartition(this.next(partitions, this.partition, 1)),
    };
    const found = acts[event.key] ? () => this.act(acts[event.key]) : others[event.key];
    if (!found) return;
    event.preventDefault();
    found();
  }
}

window.play = new Play();
