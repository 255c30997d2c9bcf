// Colour scales: viridis for experiences, a muted diverging scale for the policy's surface.

import { colours } from "./theme.js";

// viridis at 17 even steps (matplotlib, CC0)
const VIRIDIS = ["#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c", "#1fa088",
  "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725"];
export const UNKNOWN = 255;

function parse(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function mix(a, b, share) {
  return a.map((v, i) => v + (b[i] - v) * share);
}

/** [r, g, b] of viridis at 0 to 1; without its pale end on a light background, with a pale low end on a dark one. */
export function viridis(share) {
  const known = Math.min(1, Math.max(0, share)), at = (colours.dark ? known : 0.9 * known) * (VIRIDIS.length - 1);
  const i = Math.min(VIRIDIS.length - 2, Math.floor(at));
  const colour = mix(parse(VIRIDIS[i]), parse(VIRIDIS[i + 1]), at - i);
  return colours.dark ? mix(colour, [255, 255, 255], 0.5 * (1 - known)) : colour;
}

/** [r, g, b] of the surface at -1 to 1, the actuator's limits; `oneSided` where its range does not cross zero. */
export function surfaceColour(share, oneSided) {
  if (oneSided) return mix(parse(colours.surface_mid), parse(colours.surface_high), (share + 1) / 2);
  const end = share < 0 ? colours.surface_low : colours.surface_high;
  return mix(parse(colours.surface_mid), parse(end), Math.min(1, Math.abs(share)));
}

export function css([r, g, b]) {
  return `rgb(${Math.round(r)} ${Math.round(g)} ${Math.round(b)})`;
}

/** Fills a canvas with a colour scale, from left to right. */
export function paintScale(canvas, colourAt) {
  canvas.width = 128;
  canvas.height = 1;
  const ctx = canvas.getContext("2d");
  for (let i = 0; i < 128; i++) {
    ctx.fillStyle = css(colourAt(i / 127));
    ctx.fillRect(i, 0, 1, 1);
  }
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}
