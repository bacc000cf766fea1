// Draws the charts, scales rates to the reader's cluster, and sorts, filters and exports the table of all numbers.
// Without this script the page shows the same content: drawings as SVG, tables in the order of the study.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const PAPER = { whole: 620, half: 265 };
const views = [];

/** A number as `words.number` of the report writes it. */
function written(value) {
  if (value === 0) return "0";
  if (value >= 1000) return Math.round(value).toLocaleString("en-US");
  if (value >= 1e-4) return String(Number(value.toPrecision(3)));
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  const digits = String(-exponent).replace(/\d/g, (digit) => SUPERSCRIPTS[digit]);
  return `${Number((value / 10 ** exponent).toPrecision(3))}\u00a0×\u00a010⁻${digits}`;
}

/** How often an event of this yearly rate comes, in words. */
function period(rate) {
  if (rate <= 0) return "–";
  const years = 1 / rate;
  if (years >= 1e6) return "more than a million years";
  for (const [unit, size] of [["years", 1], ["days", 1 / 365], ["hours", 1 / 8760]]) {
    if (years >= 2 * size) return `${written(years / size)} ${unit}`;
  }
  return `${written(years * 525600)} minutes`;
}

function scale(partitions) {
  for (const element of document.querySelectorAll("[data-rate]")) {
    const value = Number(element.dataset.rate) * partitions;
    const sign = value > 0 ? "+" : value < 0 ? "−" : "±";
    element.textContent = ("signed" in element.dataset ? sign : "") + written(Math.abs(value));
  }
  const unit = partitions === 1 ? "per partition-year" : `a year in ${partitions.toLocaleString("en-US")} partitions`;
  for (const element of document.querySelectorAll("[data-unit]")) element.textContent = unit;
  const count = `${partitions.toLocaleString("en-US")} partition${partitions === 1 ? "" : "s"}`;
  for (const element of document.querySelectorAll("[data-partitions]")) element.textContent = count;
  for (const table of document.querySelectorAll("table.labelled")) label(table);
  for (const element of document.querySelectorAll("[data-period]")) {
    const text = period(Number(element.dataset.period) * partitions);
    element.textContent = "bound" in element.dataset && text !== "–" ? `at least ${text}` : text;
  }
  return Promise.all(views.filter(({ scaled }) => scaled).map(({ view }) => view.signal("partitions", partitions).runAsync()));
}

async function draw() {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  for (const { name, spec, scaled } of charts) {
    const drawn = await window.vegaEmbed(`#plot-${name}`, spec, { mode: "vega-lite", actions: false, renderer: "svg" });
    views.push({ view: drawn.view, scaled });
  }
  const field = document.getElementById("partitions");
  const rescale = () => (field.checkValidity() && field.value ? scale(Number(field.value)) : undefined);
  field.addEventListener("input", rescale);
  await rescale();
}

/** Gives each cell the heading of its column, which narrow windows show instead of the row of headings. */
function label(table) {
  const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, column) => { cell.dataset.label = headings[column]; });
  table.classList.add("labelled");
}

/** Draws the charts at the width of paper, or again at that of the window: what is scaled down is too small to read. */
function fitCharts(onPaper) {
  for (const { view } of views) {
    const place = view.container().closest(".plot");
    const isHalf = place.closest(".plots")?.querySelectorAll("figure").length > 1;
    const width = onPaper ? (isHalf ? PAPER.half : PAPER.whole) : place.clientWidth;
    view.signal("width", width).run();
  }
}

function sortable(table) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const descending = header.getAttribute("aria-sort") === "ascending";
      for (const other of headers) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value;
      const compare = column === 0
        ? (a, b) => key(a).localeCompare(key(b), "en", { numeric: true })
        : (a, b) => (key(a) === "") - (key(b) === "") || Number(key(a)) - Number(key(b));
      body.append(...[...body.rows].sort((a, b) => (descending ? -1 : 1) * compare(a, b)));
    });
  });
}

function filterable(table, field, status) {
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) {
      const name = row.cells[0].dataset.value.toLowerCase();
      row.hidden = !words.every((word) => name.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    status.textContent = words.length ? `${shown} of ${rows.length} settings` : "";
  });
}

/** The rows that are shown, in their order, as CSV: of each number the estimate and the limits, per partition-year. */
function csv(table) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const [first, ...numbers] = [...table.tHead.rows[0].cells].map((header) => header.dataset.key);
  const head = [first, ...numbers.flatMap((name) => [name, `${name}_ci_low`, `${name}_ci_high`])];
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => {
    const [name, ...cells] = [...row.cells];
    return [quoted(name.dataset.value), ...cells.flatMap(({ dataset }) => [dataset.value, dataset.low, dataset.high])];
  });
  return [head, ...rows].map((row) => row.join(",")).join("\r\n") + "\r\n";
}

function exportable(table, button) {
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
    link.download = table.dataset.file;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  fitCharts(true);
});
window.addEventListener("afterprint", () => fitCharts(false));
for (const table of document.querySelectorAll(".scroll table:not(#table)")) label(table);
document.documentElement.classList.add("has-script");
const table = document.getElementById("table");
sortable(table);
filterable(table, document.getElementById("filter"), document.getElementById("shown"));
exportable(table, document.getElementById("export"));
draw().then(() => document.documentElement.setAttribute("data-drawn", ""));
