// Colours of the style sheet for canvases, and canvases that resize with their box.

const NAMES = ["bg", "panel", "raised", "line", "ink", "soft", "faint", "accent", "second", "violet", "good", "warn", "bad",
  "surface-low", "surface-mid", "surface-high"];

export const colours = {};
const listeners = [];

function read() {
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) colours[name.replace("-", "_")] = style.getPropertyValue(`--${name}`).trim();
  colours.dark = style.colorScheme === "dark" || style.getPropertyValue("color-scheme").trim() === "dark";
  colours.series = [colours.accent, colours.second, colours.violet, colours.good];
}

read();
matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => {
  read();
  for (const listener of listeners) listener();
});

/** Calls `listener` after a change of colours. */
export function onChange(listener) {
  listeners.push(listener);
}

export const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

/** Canvas that fills its box; `paint(ctx, width, height)` draws in CSS pixels. */
export class CanvasView {
  constructor(id, paint) {
    this.canvas = document.getElementById(id);
    this.ctx = this.canvas.getContext("2d");
    this.paint = paint;
    this.width = this.height = 0;
    new ResizeObserver(() => this.fit()).observe(this.canvas.parentElement);
    onChange(() => this.draw());
  }

  fit() {
    const box = this.canvas.parentElement.getBoundingClientRect();
    const ratio = Math.min(devicePixelRatio || 1, 3);
    const width = Math.round(box.width), height = Math.round(box.height);
    if (width === this.width && height === this.height && ratio === this.ratio) return;
    [this.width, this.height, this.ratio] = [width, height, ratio];
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    this.draw();
  }

  draw() {
    const { ctx } = this;
    if (!this.ratio) return; // not laid out yet
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.clearRect(0, 0, this.width, this.height);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    if (this.width > 20 && this.height > 20) this.paint(ctx, this.width, this.height);
  }

  /** Sets the description for screen readers. */
  describe(text) {
    if (this.canvas.getAttribute("aria-label") !== text) this.canvas.setAttribute("aria-label", text);
  }
}

/** Paints a text in an empty canvas. */
export function paintEmpty(ctx, width, height, text) {
  ctx.fillStyle = colours.soft;
  ctx.textAlign = "center";
  ctx.fillText(text, width / 2, height / 2, width - 20);
}
