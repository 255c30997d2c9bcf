// A pendulum: hanging down at 0, counter-clockwise positive; the motor's voltage below.

import { colours } from "./theme.js";
import { drawGauge } from "./gauge.js";

const TRAIL = 36;

export function drawPendulum(ctx, width, height, about, now, samples) {
  const { angle, actuator, target } = about.drawing;
  const gauge = 46;
  const cx = width / 2, cy = (height - gauge) / 2 + 2;
  const r = Math.min(width / 2 - 24, (height - gauge) / 2 - 16);
  const at = (theta, length) => [cx + length * Math.sin(theta), cy + length * Math.cos(theta)];

  ctx.lineWidth = 1;
  ctx.strokeStyle = colours.line;
  ctx.beginPath();
  ctx.arc(cx, cy, r, 0, 2 * Math.PI);
  ctx.stroke();
  for (let k = 0; k < 12; k++) {
    const [x0, y0] = at((k * Math.PI) / 6, r - 4), [x1, y1] = at((k * Math.PI) / 6, r + 4);
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.lineTo(x1, y1);
    ctx.stroke();
  }
  if (typeof target === "number") {
    const [x, y] = at(target, r);
    ctx.strokeStyle = colours.good;
    ctx.lineWidth = 2;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.arc(x, y, 12, 0, 2 * Math.PI);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = colours.good;
    ctx.textAlign = "left";
    ctx.fillText("target", x + 24, y - 10);
  }
  ctx.fillStyle = colours.soft;
  ctx.textAlign = "center";
  if (!now) return;

  const theta = now.observation[angle];
  const column = samples.observation[angle];
  for (let i = Math.max(1, now.index - TRAIL); i <= now.index; i++) {
    const [x0, y0] = at(column[i - 1], r), [x1, y1] = at(i === now.index ? theta : column[i], r);
    if (Math.hypot(x1 - x0, y1 - y0) > r) continue;
    ctx.strokeStyle = colours.accent;
    ctx.globalAlpha = 0.5 * (1 - (now.index - i) / TRAIL);
    ctx.lineWidth = 4;
    ctx.lineCap = "round";
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.lineTo(x1, y1);
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
  const [x, y] = at(theta, r);
  ctx.strokeStyle = colours.ink;
  ctx.lineWidth = 5;
  ctx.lineCap = "round";
  ctx.beginPath();
  ctx.moveTo(cx, cy);
  ctx.lineTo(x, y);
  ctx.stroke();
  ctx.fillStyle = colours.ink;
  ctx.beginPath();
  ctx.arc(cx, cy, 7, 0, 2 * Math.PI);
  ctx.fill();
  ctx.fillStyle = now.rule ? colours.warn : colours.accent;
  ctx.beginPath();
  ctx.arc(x, y, 12, 0, 2 * Math.PI);
  ctx.fill();
  const a = about.actuators[actuator];
  drawGauge(ctx, width / 2 - Math.min(150, width / 2 - 30), height - gauge + 18, 2 * Math.min(150, width / 2 - 30), a, now.applied[actuator]);
}
