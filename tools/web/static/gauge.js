// A value within its range, as a bar from where it rests: its safe value, else zero (or the lower end).

import { colours } from "./theme.js";
import { short, unitText } from "./plot.js";

export function drawGauge(ctx, x, y, width, what, value) {
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
