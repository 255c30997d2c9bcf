// Drawing of the rig: shapes moved, turned, grown and lit by signals (runtime/view/drawing.py), or bars; actuators below.

import { colours } from "./theme.js";
import { short, unitText } from "./plot.js";

const GAUGE = 46;

export function drawRig(ctx, width, height, about, now, samples) {
  if (about.drawing.shapes) drawScene(ctx, width, height, about, now, samples);
  else drawBars(ctx, width, height, about, now);
}

function drawScene(ctx, width, height, about, now, samples) {
  const { low, high, shapes } = about.drawing;
  const shown = new Set(shapes.filter((s) => s.grown_by).map((s) => s.grown_by[1])); // already in the scene
  const gauges = about.actuators.map((a, i) => [a, i]).filter(([, i]) => !shown.has(i));
  const row = Math.min(GAUGE, (0.5 * height) / Math.max(1, gauges.length)), room = height - row * gauges.length - 8;
  const scale = Math.min((width - 24) / (high[0] - low[0]), room / (high[1] - low[1]));
  const px = ([x, y]) => [width / 2 + scale * (x - (low[0] + high[0]) / 2), 4 + room / 2 - scale * (y - (low[1] + high[1]) / 2)];
  const painter = { ctx, about, now, samples, scale, px };
  ctx.lineCap = ctx.lineJoin = "round";
  for (const shape of shapes) paint(shape, painter);
  ctx.globalAlpha = 1;
  ctx.setLineDash([]);
  const long = 2 * Math.min(150, width / 2 - 30);
  gauges.forEach(([a, i], k) => drawGauge(ctx, (width - long) / 2, room + 8 + k * row, long, a, now ? now.applied[i] : null));
}

function paint(shape, { ctx, about, now, samples, scale, px }) {
  const read = ([source, at]) => (now ? now[source][at] : null);
  if (!shownBy(shape).every((signal) => read(signal) !== null)) return;
  const points = grown(shape, about, read).map((point) => px(placed(point, shape, read)));
  const colour = shape.colour === "accent" && now?.rule ? colours.warn : colours[shape.colour];
  if (shape.trail_s && now) paintTrail(shape, colour, { ctx, now, samples, px });
  ctx.globalAlpha = shape.lit_by ? 0.75 * shareOf(shape.lit_by, about, read) : 1;
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = shape.width;
  ctx.setLineDash(shape.dashed ? [4, 3] : []);
  const [[x, y]] = points, radius = scale * shape.radius;
  if (shape.form === "text") {
    ctx.textAlign = "center";
    ctx.fillText(shape.value_of ? short(read(shape.value_of)) : unitText(shape.text), x, y);
    return;
  }
  ctx.beginPath();
  if (shape.form === "circle") ctx.arc(x, y, radius, 0, 2 * Math.PI);
  else points.forEach((point, i) => (i ? ctx.lineTo(...point) : ctx.moveTo(...point)));
  if (shape.form === "polygon") ctx.closePath();
  if (shape.form === "line" || shape.outlined) {
    ctx.stroke();
    return;
  }
  if (shape.lit_by) ctx.fillStyle = shine(ctx, x, y, x, y, radius, colour, `${colour}00`);
  else if (shape.form === "circle" && shape.colour === "accent") ctx.fillStyle = shine(ctx, x - radius / 3, y - radius / 3, x, y, radius, "#ffffff", colour);
  ctx.fill();
}

function shine(ctx, fromX, fromY, x, y, radius, inner, outer) {
  const gradient = ctx.createRadialGradient(fromX, fromY, radius / 12, x, y, radius);
  gradient.addColorStop(0, inner);
  gradient.addColorStop(1, outer);
  return gradient;
}

/** Path of the first point; interrupted where an episode begins or an angle wraps. */
function paintTrail(shape, colour, { ctx, now, samples, px }) {
  const from = now.t - shape.trail_s;
  const at = (i) => px(placed(shape.points[0], shape, ([source, k]) => samples[source][k][i]));
  ctx.strokeStyle = colour;
  ctx.lineWidth = 3;
  ctx.lineCap = "butt"; // round caps would overlap visibly between translucent pieces
  ctx.setLineDash([]);
  let last = at(now.index);
  for (let i = now.index; i > 0 && samples.t[i - 1] >= from && !samples.begins[i]; i--) {
    const point = at(i - 1);
    if (Math.hypot(point[0] - last[0], point[1] - last[1]) < 150) {
      ctx.globalAlpha = 0.5 * (1 - (now.t - samples.t[i]) / shape.trail_s);
      ctx.beginPath();
      ctx.moveTo(...last);
      ctx.lineTo(...point);
      ctx.stroke();
    }
    last = point;
  }
  ctx.lineCap = "round";
}

/** Signals without which a shape is not drawn. */
function shownBy(shape) {
  return [shape.grown_by, shape.lit_by, ...shape.motions.map((motion) => motion.by)].filter(Boolean);
}

function shareOf([source, at], about, read) {
  const signal = source === "applied" ? about.actuators[at] : about.observations[at];
  return Math.min(1, Math.max(0, (read([source, at]) - signal.low) / (signal.high - signal.low)));
}

function grown(shape, about, read) {
  if (!shape.grown_by) return shape.points;
  const share = shareOf(shape.grown_by, about, read), foot = Math.min(...shape.points.map(([, y]) => y));
  return shape.points.map(([x, y]) => [x, foot + share * (y - foot)]);
}

function placed(point, shape, read) {
  let [x, y] = point;
  for (const { by, turn, about: [cx, cy], shift } of shape.motions) {
    const value = read(by), c = Math.cos(turn * value), s = Math.sin(turn * value), dx = x - cx, dy = y - cy;
    [x, y] = [cx + c * dx - s * dy + shift[0] * value, cy + s * dx + c * dy + shift[1] * value];
  }
  return [x, y];
}

/** Draws a rig without a scene: each observation and each actuator as a gauge. */
function drawBars(ctx, width, height, about, now) {
  const rows = [...about.observations.map((o, i) => [o, now?.observation[i]]), ...about.actuators.map((a, i) => [a, now?.applied[i]])];
  const step = Math.min(58, (height - 12) / rows.length);
  rows.forEach(([what, value], i) => drawGauge(ctx, 30, 24 + i * step, width - 60, what, value ?? null));
}

/** Draws a value within its range, as a bar from its safe value, else from zero (or the nearer end). */
function drawGauge(ctx, x, y, width, what, value) {
  const at = (v) => x + (width * (Math.min(what.high, Math.max(what.low, v)) - what.low)) / (what.high - what.low);
  ctx.fillStyle = colours.line;
  ctx.beginPath();
  ctx.roundRect(x, y, width, 8, 4);
  ctx.fill();
  const zero = at(Math.max(what.low, Math.min(what.high, what.safe ?? 0)));
  if (value !== null) {
    const to = at(value);
    ctx.fillStyle = colours.second;
    ctx.fillRect(Math.min(zero, to), y, Math.max(2, Math.abs(to - zero)), 8);
  }
  ctx.fillStyle = colours.soft;
  ctx.fillRect(zero - 0.5, y - 3, 1, 14);
  ctx.textAlign = "left";
  ctx.fillText(`${short(what.low)}`, x, y + 19);
  ctx.textAlign = "right";
  ctx.fillText(`${short(what.high)} ${unitText(what.unit)}`, x + width, y + 19);
  ctx.textAlign = "center";
  ctx.fillText(what.name, x + width / 2, y + 19);
}
