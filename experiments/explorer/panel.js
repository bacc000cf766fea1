/* Details of the selected event, the filter, and the story beside the diagram. */

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function eventLink(app, run, i, text) {
  const open = (event) => {
    event.preventDefault();
    app.select(run, i);
  };
  return element("a", { href: `#${run.letter}${i}`, onclick: open }, text);
}

function fieldRows(fields) {
  return Object.entries(fields).map(([name, value]) => {
    const nested = typeof value === "object" && value !== null && JSON.stringify(value).length > 40;
    const shown = nested ? element("pre", {}, JSON.stringify(value, null, 1)) : JSON.stringify(value);
    return element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, shown));
  });
}

/* Fills the panel with one event: what it is, where it comes from, what follows, its fields, the partition then. */
function showDetails(app, panel) {
  const { selected } = app;
  if (!selected) {
    panel.replaceChildren(
      element("p", { class: "note" }, "Select an event or an arrow to see its fields. ", element("kbd", {}, "→"), " steps to the next event, ", element("kbd", {}, "c"), " shows what happened before it.")
    );
    return;
  }
  const { run, index } = selected;
  const role = run.role(index);
  const sent = role === "receive" && run.cause[index] >= 0 ? run.cause[index] : index;
  const fields = { ...(sent === index ? {} : run.fields(sent)), ...run.fields(index) };
  const partitions = run.partitionsOf(index);
  const parts = [
    element("h2", {}, role === "violation" ? `violated: ${run.name(index)}` : run.text(index)),
    element("p", { class: "where" }, `${formatTime(run.time[index])} · ${run.nodeName(index)}${app.runs.length > 1 ? ` · ${run.title}` : ""}${partitions.length ? ` · ${partitions.join(", ")}` : ""}`),
    role === "violation" ? element("p", { class: "alarm" }, run.text(index)) : null,
    element("ul", { class: "links" }, ...neighbours(app, run, index)),
    pastButton(app, run),
    element("table", { class: "fields" }, element("tbody", {}, ...fieldRows(fields))),
    partitionThen(app, run, index),
  ];
  panel.replaceChildren(...parts.filter((part) => part !== null));
}

function neighbours(app, run, index) {
  const found = [];
  const add = (label, i) => {
    if (i >= 0) found.push(element("li", {}, `${label} `, eventLink(app, run, i, `${formatTime(run.time[i])} ${run.nodeName(i)}: ${run.text(i)}`)));
  };
  add("sent at", run.role(index) === "receive" ? run.cause[index] : -1);
  if (run.role(index) === "trace") add("depends on", run.cause[index]);
  add("received at", run.effect[index]);
  if (run.role(index) === "send" && run.effect[index] < 0) found.push(element("li", { class: "alarm" }, "never received"));
  add("before it on the node:", run.previous[index]);
  add("after it on the node:", run.next[index]);
  return found;
}

function pastButton(app, run) {
  const { past } = app;
  const label = past ? `${past.reduce((sum, each) => sum + each, -1)} events happened before it` : "Show what happened before it";
  return element("button", { type: "button", "aria-pressed": String(Boolean(past)), onclick: () => app.togglePast() }, label);
}

function partitionThen(app, run, index) {
  const pane = app.panes[app.runs.indexOf(run)];
  const state = itemAt(pane.states, index);
  if (!state) return null;
  const mark = itemAt(pane.marks, index);
  const highWatermark = mark ? ` · high watermark ${mark.value}` : "";
  return element("p", { class: "note" }, `${pane.partition} at this moment: ${stateText(state)}${highWatermark}`);
}

/* Check boxes for nodes and kinds; a group's box switches all its kinds. */
function buildFilter(app, place) {
  const box = (label, checked, change, css = "") =>
    element("label", { class: css }, element("input", { type: "checkbox", checked, onchange: (event) => change(event.target.checked) }), label);
  const nodes = element("fieldset", {}, element("legend", {}, "Nodes"));
  for (const node of app.nodeNames) {
    nodes.append(box(node, !app.hiddenNodes.has(node), (on) => app.hide(app.hiddenNodes, [node], !on)));
  }
  place.replaceChildren(nodes);
  for (const [group, kinds] of app.kindsByGroup) {
    const names = [...kinds].sort();
    const inner = element("div", { class: "kinds" });
    const fill = () =>
      inner.replaceChildren(...names.map((kind) => box(kind.split(" ").slice(1).join(" "), !app.hiddenKinds.has(kind), (on) => app.hide(app.hiddenKinds, [kind], !on))));
    const all = names.some((kind) => !app.hiddenKinds.has(kind));
    fill();
    place.append(
      element("fieldset", {}, element("legend", {}, box(group, all, (on) => { app.hide(app.hiddenKinds, names, !on); fill(); }, "group")), inner)
    );
  }
}

/* Marks the row of the story that belongs to the selected event, or the last one before it. */
function markStory(app) {
  document.querySelectorAll("tr[aria-current]").forEach((row) => row.removeAttribute("aria-current"));
  if (!app.selected) return;
  const { run, index } = app.selected;
  const rows = app.storyRows.get(run);
  const found = itemAt(rows, index);
  if (!found) return;
  found.row.setAttribute("aria-current", "true");
  const box = found.row.closest(".story-box");
  const [row, frame] = [found.row.getBoundingClientRect(), box.getBoundingClientRect()];
  if (row.top < frame.top || row.bottom > frame.bottom) box.scrollTop += row.top - frame.top - frame.height / 2;
}
