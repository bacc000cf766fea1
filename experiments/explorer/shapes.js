/* Colours by group, shapes by kind, and what the drawing needs of geometry and text. */

const GROUP_COLORS = {
  "Produce and fetch": "--data",
  "Brokers and ISR": "--control",
  "Metadata quorum": "--quorum",
  "Unclean recovery": "--recovery",
  Administration: "--admin",
  "Kafka's protocol": "--recovery",
  "Client events": "--data",
  "Broker events": "--ink",
  "Controller events": "--control",
  "Quorum events": "--quorum",
  "Node events": "--ink",
  Timers: "--muted",
  Experiment: "--fault",
  Violations: "--alarm",
};
/* Shapes of the events that matter most; they stay visible where events are dense. */
const SHAPES = {
  became_leader: "up",
  partition: "diamond",
  controller_started: "up",
  truncated: "down",
  recovery: "star",
  alert: "star",
  session_expired: "cross",
  crashed: "cross",
  exited: "cross",
  started: "play",
  paused: "bars",
  resumed: "play",
};

function shapeOf(role, name) {
  if (role === "violation") return "alarm";
  return role === "trace" || role === "change" ? SHAPES[name] : undefined;
}

function drawGlyph(context, shape, x, y) {
  const size = shape === "alarm" ? 9 : 6;
  context.lineWidth = 2;
  context.beginPath();
  if (shape === "cross") {
    for (const side of [-1, 1]) {
      context.moveTo(x - size, y - side * size);
      context.lineTo(x + size, y + side * size);
    }
    context.stroke();
    return;
  }
  if (shape === "bars") {
    context.rect(x - 5, y - 6, 3.5, 12);
    context.rect(x + 1.5, y - 6, 3.5, 12);
  } else {
    const points = {
      up: [[0, -1], [1, 0.8], [-1, 0.8]],
      down: [[0, 1], [1, -0.8], [-1, -0.8]],
      play: [[-0.8, -1], [1, 0], [-0.8, 1]],
      diamond: [[0, -1], [0.8, 0], [0, 1], [-0.8, 0]],
      star: [[0, -1.2], [0.35, -0.35], [1.2, 0], [0.35, 0.35], [0, 1.2], [-0.35, 0.35], [-1.2, 0], [-0.35, -0.35]],
      alarm: [[0, -1.3], [1.2, 0.9], [-1.2, 0.9]],
    }[shape];
    points.forEach(([dx, dy], k) => context[k ? "lineTo" : "moveTo"](x + dx * size, y + dy * size));
    context.closePath();
  }
  context.fill();
}

function toSegment(x, y, ax, ay, bx, by) {
  const square = (bx - ax) ** 2 + (by - ay) ** 2;
  const along = square ? Math.max(0, Math.min(1, ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / square)) : 0;
  return Math.hypot(x - ax - along * (bx - ax), y - ay - along * (by - ay));
}

/* A text cut to a width in pixels. */
function clip(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}
