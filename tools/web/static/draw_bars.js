// A rig without a drawing of its own: each observation and each actuator as a mark within its range.

import { colours } from "./theme.js";
import { drawGauge } from "./gauge.js";

export function drawBars(ctx, width, height, about, now) {
  const rows = [...about.observations.map((o, i) => [o, now?.observation[i]]), ...about.actuators.map((a, i) => [a, now?.applied[i]])];
  const step = Math.min(58, (height - 12) / rows.length);
  rows.forEach(([what, value], i) => drawGauge(ctx, 30, 24 + i * step, width - 60, what, value ?? null));
  ctx.fillStyle = colours.soft;
}
