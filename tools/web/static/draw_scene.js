// A drawing of shapes that signals turn and move (runtime/view/drawing.py); the actuators below.

import { colours } from "./theme.js";
import { drawGauge } from "./gauge.js";

export function drawScene(ctx, width, height, about, now) {
  const { low, high, shapes } = about.drawing;
  const row = 46, room = height - row * about.actuators.length - 16;
  const scale = Math.min((width - 24) / (high[0] - low[0]), room / (high[1] - low[1]));
  const px = ([x, y]) => [width / 2 + scale * (x - (low[0] + high[0]) / 2), 8 + room / 2 - scale * (y - (low[1] + high[1]) / 2)];
  ctx.lineWidth = 4;
  ctx.lineCap = "round";
  for (const shape of shapes) {
    if (!now && (shape.turned_by || shape.moved_by.length)) continue;
    const points = shape.points.map((point) => px(placed(point, shape, now)));
    ctx.strokeStyle = ctx.fillStyle = shape.colour === "accent" && now?.rule ? colours.warn : colours[shape.colour];
    ctx.beginPath();
    if (shape.form === "circle") ctx.arc(...points[0], scale * shape.radius, 0, 2 * Math.PI);
    else points.forEach((point, i) => (i ? ctx.lineTo(...point) : ctx.moveTo(...point)));
    if (shape.form === "line") ctx.stroke();
    else ctx.fill();
  }
  const long = 2 * Math.min(150, width / 2 - 30);
  about.actuators.forEach((a, i) => drawGauge(ctx, (width - long) / 2, room + 34 + i * row, long, a, now ? now.applied[i] : null));
}

function placed([x, y], shape, now) {
  if (shape.turned_by) {
    const [source, at] = shape.turned_by, [cx, cy] = shape.about, angle = now[source][at];
    const c = Math.cos(angle), s = Math.sin(angle), dx = x - cx, dy = y - cy;
    [x, y] = [cx + c * dx - s * dy, cy + s * dx + c * dy];
  }
  for (const [source, at, shift] of shape.moved_by) [x, y] = [x + shift[0] * now[source][at], y + shift[1] * now[source][at]];
  return [x, y];
}
