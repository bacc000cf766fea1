"use strict";

/* The run as typed columns. Written by experiments/explorer/page.py. */

async function unpack(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

class Run {
  constructor(document, letter) {
    const size = document.time.length;
    Object.assign(this, { letter, size, document });
    for (const name of ["title", "nodes", "kinds", "sets", "partitions", "headings", "notes"]) {
      this[name] = document[name];
    }
    this.roles = this.kinds.map(([role]) => role);
    this.groups = this.kinds.map(([, , group]) => group);
    this.time = new Float64Array(size);
    this.node = Uint16Array.from(document.node);
    this.kind = Uint16Array.from(document.kind);
    this.about = Uint16Array.from(document.about);
    this.cause = new Int32Array(size).fill(-1);
    this.effect = new Int32Array(size).fill(-1);
    this.previous = new Int32Array(size).fill(-1);
    this.next = new Int32Array(size).fill(-1);
    this.laneOf = new Map(this.nodes.map((node, lane) => [node.id, lane]));
    const last = new Int32Array(this.nodes.length).fill(-1);
    let now = 0;
    for (let i = 0; i < size; i++) {
      now += document.time[i];
      this.time[i] = now;
      if (document.cause[i]) {
        this.cause[i] = i - document.cause[i];
        if (this.effect[this.cause[i]] < 0) this.effect[this.cause[i]] = i;
      }
      const before = last[this.node[i]];
      this.previous[i] = before;
      if (before >= 0) this.next[before] = i;
      last[this.node[i]] = i;
    }
    this.violations = this.eventsOf("violation");
  }

  eventsOf(role) {
    const found = [];
    for (let i = 0; i < this.size; i++) if (this.roles[this.kind[i]] === role) found.push(i);
    return found;
  }

  role(i) { return this.roles[this.kind[i]]; }
  name(i) { return this.kinds[this.kind[i]][1]; }
  group(i) { return this.groups[this.kind[i]]; }
  nodeName(i) { return this.nodes[this.node[i]].name; }
  partitionsOf(i) { return this.sets[this.about[i]].map((number) => this.partitions[number]); }

  fields(i) {
    const names = this.document.shapes[this.document.shape[i]];
    return Object.fromEntries(names.map((name, place) => [name, this.document.values[i][place]]));
  }

  /* The lane of the other end of a message, -1 where there is none. */
  peer(i) {
    const other = this.role(i) === "send" ? this.effect[i] : this.cause[i];
    if (other >= 0) return this.node[other];
    const fields = this.fields(i);
    return this.laneOf.get(this.role(i) === "send" ? fields.to : fields.from) ?? -1;
  }

  text(i) {
    const role = this.role(i);
    if (role !== "send" && role !== "receive") return this.document.text[i] || this.name(i);
    const lane = this.peer(i);
    const other = lane >= 0 ? this.nodes[lane].name : "a node that is not shown";
    return role === "send" ? `sends ${this.name(i)} to ${other}` : `receives ${this.name(i)} from ${other}`;
  }
}
