// Time plots by uPlot in the page's colours: the cursor shows values, dragging zooms, a double click resets.

import { FONT, colours, onChange } from "./theme.js";
import { short } from "./plot.js";

/* global uPlot */
let spans = 0;

/** Time axis shared by plots: cursor and zoom. */
export class Span {
  /** `pressed()`: pointer pressed on a plot; `reset()`: double click; `moved(t)`: cursor moved to a time. */
  constructor({ pressed = () => {}, reset = () => {}, moved = () => {} } = {}) {
    Object.assign(this, { pressed, reset, moved, zoom: null, plots: [], key: `span-${spans++}` });
  }

  show(zoom) {
    this.zoom = zoom;
    for (const plot of this.plots) plot.draw();
  }
}

/** Plot that fills an element, with a legend and the values at the cursor above it.
 *
 * `x`: {range(), splits(low, high), format, name, shown}, `y`: {range(), splits, format}, each range [low, high];
 * `series`: uPlot's, with `role` (a colour of the page), `label` and `text(value, index)`; `under` and `over` paint in
 * CSS pixels, with the origin in the top left corner of the plotting area.
 */
export class TimePlot {
  constructor(element, span, { title = "", x, y, series, under, over, margin = 46 }) {
    this.element = typeof element === "string" ? document.getElementById(element) : element;
    Object.assign(this, { span, series, x, data: [[], ...series.map(() => [])], message: "" });
    span.plots.push(this);
    this.addLegend(title);
    const box = document.createElement("div");
    box.className = "box";
    this.element.append(box);
    const axis = (of, more) => ({ stroke: () => colours.soft, font: FONT, grid: { show: false }, ticks: { show: false },
      values: (u, splits) => splits.map((v) => (of.format ?? short)(v)), filter: (u, splits) => splits, ...more });
    const lines = { stroke: () => colours.line, width: 1 };
    const splitsOf = (of) => (of.splits ? { splits: (u, i, low, high) => (Array.isArray(of.splits) ? of.splits : of.splits(low, high, u)) } : {});
    this.plot = new uPlot({
      width: 100, height: 100, legend: { show: false }, padding: [7, 10, x.shown ? 0 : 4, 0],
      scales: { x: { time: false, distr: x.log ? 3 : 1, range: () => span.zoom ?? x.range() }, y: { distr: y.log ? 3 : 1, range: () => y.range() } },
      axes: [axis(x, { show: Boolean(x.shown), size: 24, gap: 4, ticks: { ...lines, size: 4 }, ...splitsOf(x) }),
        axis(y, { size: margin, gap: 6, grid: lines, ...splitsOf(y) })],
      series: [{}, ...series.map((s) => ({ width: 1.8, points: { show: false }, ...s, stroke: () => colours[s.role] }))],
      cursor: {
        y: false, sync: { key: span.key, setSeries: false }, drag: { x: true, y: false, setScale: false },
        bind: {
          mousedown: (u, target, handle) => (e) => { span.pressed(); handle(e); },
          dblclick: () => () => { span.reset(); span.show(null); },
        },
      },
      hooks: {
        setCursor: [() => this.showValues()],
        setSelect: [(u) => this.zoomTo(u)],
        drawAxes: under ? [(u) => within(u, under)] : [],
        draw: over ? [(u) => within(u, over)] : [],
      },
    }, this.data, box);
    new ResizeObserver(() => this.fit(box)).observe(box);
    onChange(() => this.plot.redraw(false));
  }

  addLegend(title) {
    const line = document.createElement("p");
    line.className = "keys";
    if (title) line.append(Object.assign(document.createElement("span"), { textContent: title }));
    this.values = this.series.map((s) => {
      const key = document.createElement("span"), value = document.createElement("output");
      key.className = s.label ? "key" : "";
      key.style.setProperty("--key", `var(--${s.role})`);
      key.append(s.label ?? "", value);
      line.append(key);
      return value;
    });
    this.at = Object.assign(document.createElement("output"), { className: "at" });
    line.append(this.at);
    this.element.append(line);
  }

  /** Shows a text where the cursor's position is normally shown. */
  note(text) {
    this.message = text;
    this.showValues();
  }

  fit(box) {
    const width = Math.floor(box.clientWidth), height = Math.floor(box.clientHeight);
    if (width > 60 && height > 20) this.plot.setSize({ width, height });
  }

  /** Shows columns: x, then each of the series. */
  show(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    this.plot.setData(this.data);
  }

  /** Shows the values at the cursor. */
  showValues() {
    const { idx, left } = this.plot.cursor, on = left >= 0 && idx !== null && idx !== undefined;
    this.series.forEach((s, k) => {
      const at = on ? near(this.data[k + 1], idx) : null;
      write(this.values[k], at === null ? "" : ` ${(s.text ?? short)(this.data[k + 1][at], at)}`);
    });
    write(this.at, on && this.x.name ? this.x.name(this.data[0][idx]) : this.message);
    if (on) this.span.moved(this.plot.posToVal(left, "x"));
  }

  zoomTo(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.span.show([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }

  /** Sets the description for screen readers. */
  describe(text) {
    if (this.element.getAttribute("aria-label") !== text) this.element.setAttribute("aria-label", text);
  }
}

function write(output, text) {
  if (output.textContent !== text) output.textContent = text;
}

/** Index of the value at `i` or next to it; series of different episodes share an axis. */
function near(column, i) {
  return [i, i - 1, i + 1].find((k) => column[k] !== null && column[k] !== undefined) ?? null;
}

function within(u, paint) {
  const ratio = u.pxRatio, { left, top, width, height } = u.bbox, { ctx } = u;
  ctx.save();
  ctx.translate(left, top);
  ctx.scale(ratio, ratio);
  ctx.font = FONT;
  ctx.textBaseline = "middle";
  paint(u, ctx, width / ratio, height / ratio);
  ctx.restore();
}

/** Inserts rows so that lines break where an episode begins, and a line that wraps at `turn` leaves at one edge and
 * enters at the other. `columns`, `times` and `begins` have the same length. */
export function withBreaks(times, columns, begins, turn = 0, low = -turn / 2) {
  const rows = [];
  const add = (t, values) => rows.push([t, ...values]);
  times.forEach((t, i) => {
    const values = columns.map((c) => c[i]);
    if (i && begins[i]) add(t, columns.map(() => null));
    else if (i && turn) wrapRows(columns, i, turn, low).forEach(([share, rest]) => add(times[i - 1] + share * (t - times[i - 1]), rest));
    add(t, values);
  });
  return [times, ...columns].map((_, k) => rows.map((row) => row[k]));
}

/** Rows between `i - 1` and `i` for the columns that wrap there, ordered by time: [share of the interval, values]. Other
 * columns are interpolated linearly. */
function wrapRows(columns, i, turn, low) {
  const on = (c, share) => (c[i] === null || c[i - 1] === null ? null : c[i - 1] + share * (c[i] - c[i - 1]));
  const edges = columns.map((c) => {
    const before = c[i - 1], after = c[i];
    if (before === null || after === null || Math.abs(after - before) <= turn / 2) return null;
    const round = after > before ? turn : -turn, edge = round > 0 ? low : low + turn;
    return { round, edge, share: Math.min(1, Math.max(0, (edge - before) / (after - round - before || 1))) };
  });
  const value = (k, share) => {
    const wrap = edges[k], c = columns[k];
    if (!wrap) return on(c, share);
    return c[i - 1] + share * (c[i] - wrap.round - c[i - 1]) + (share > wrap.share ? wrap.round : 0);
  };
  return edges.flatMap((wrap, own) => (wrap ? [wrap.edge, null, wrap.edge + wrap.round].map((edge) =>
    [wrap.share, columns.map((_, k) => (k === own ? edge : value(k, wrap.share)))]) : [])).sort((a, b) => a[0] - b[0]);
}

/** Paints intervals as bands, without overlaps, which would be darker. */
export function bands(u, ctx, height, intervals, colour) {
  ctx.fillStyle = colour;
  ctx.globalAlpha = 0.25;
  let end = -Infinity;
  for (const [from, to] of intervals) {
    const left = Math.max(end, u.valToPos(from, "x")), right = Math.max(left + 1.5, u.valToPos(to, "x"));
    ctx.fillRect(left, 0, right - left, height);
    end = right;
  }
  ctx.globalAlpha = 1;
}
