// A ball on its track above the coils; a coil's brightness shows its squared current.

import { colours } from "./theme.js";
import { short, unitText } from "./plot.js";

export function drawMagman(ctx, width, height, about, now, samples) {
  const d = about.drawing;
  const left = 26, right = width - 26;
  const px = (m) => left + ((right - left) * (m - d.low)) / (d.high - d.low);
  const track = Math.round(height * 0.5), radius = Math.max(9, Math.min(15, width / 34));

  if (typeof d.target === "number") {
    const x = px(d.target);
    ctx.strokeStyle = colours.good;
    ctx.lineWidth = 2;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.moveTo(x, 26);
    ctx.lineTo(x, track + 4);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = colours.good;
    ctx.textAlign = "center";
    ctx.fillText("target", x, 15);
  }
  ctx.fillStyle = colours.line;
  ctx.fillRect(left - 8, track, right - left + 16, 5);
  if (d.walls) {
    ctx.fillStyle = colours.soft;
    ctx.fillRect(left - 12, track - 42, 5, 47);
    ctx.fillRect(right + 7, track - 42, 5, 47);
  }
  const coil = Math.max(18, Math.min(44, (right - left) * 0.075));
  for (const magnet of d.magnets) {
    const a = about.actuators[magnet.actuator];
    const share = now ? Math.min(1, Math.max(0, now.applied[magnet.actuator] / a.high)) : 0;
    const x = px(magnet.at), top = track + 16;
    const glow = ctx.createRadialGradient(x, top, 2, x, top, coil * 1.6);
    const colour = colours.series[magnet.actuator % colours.series.length];
    glow.addColorStop(0, colour);
    glow.addColorStop(1, `${colour}00`);
    ctx.globalAlpha = 0.75 * share;
    ctx.fillStyle = glow;
    ctx.fillRect(x - coil * 1.7, top - coil * 1.6, coil * 3.4, coil * 3.2);
    ctx.globalAlpha = 1;
    ctx.fillStyle = colours.raised;
    ctx.strokeStyle = share > 0.05 ? colour : colours.soft;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    ctx.roundRect(x - coil / 2, top, coil, 54, 5);
    ctx.fill();
    ctx.stroke();
    ctx.fillStyle = colour;
    ctx.fillRect(x - coil / 2 + 3, top + 51 - 48 * share, coil - 6, 48 * share);
    ctx.fillStyle = colours.soft;
    ctx.textAlign = "center";
    ctx.fillText(now ? short(now.applied[magnet.actuator]) : "–", x, top + 67);
  }
  ctx.fillStyle = colours.soft;
  ctx.textAlign = "center";
  ctx.fillText(`squared current in ${unitText(about.actuators[0].unit)}`, width / 2, track + 101);
  ctx.textAlign = "left";
  ctx.fillText(`${short(d.low * 1000)} mm`, left - 12, track - 53);
  ctx.textAlign = "right";
  ctx.fillText(`${short(d.high * 1000)} mm`, right + 12, track - 53);
  if (!now) return;

  const column = samples.observation[d.position];
  for (let i = Math.max(0, now.index - 26); i < now.index; i++) {
    ctx.globalAlpha = 0.28 * (1 - (now.index - i) / 26);
    ctx.fillStyle = colours.accent;
    ctx.beginPath();
    ctx.arc(px(column[i]), track - radius, radius, 0, 2 * Math.PI);
    ctx.fill();
  }
  ctx.globalAlpha = 1;
  const x = px(now.observation[d.position]);
  const shine = ctx.createRadialGradient(x - radius / 3, track - radius * 1.4, 1, x, track - radius, radius);
  shine.addColorStop(0, "#ffffff");
  shine.addColorStop(1, now.rule ? colours.warn : colours.accent);
  ctx.fillStyle = shine;
  ctx.beginPath();
  ctx.arc(x, track - radius, radius, 0, 2 * Math.PI);
  ctx.fill();
}
