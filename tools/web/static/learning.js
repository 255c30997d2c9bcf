// The learning curve and, below it, the exploration.

import { Picture, colours, sayEmpty } from "./theme.js";
import { Plot, niceTicks } from "./plot.js";

const WINDOW = 20;

export class Learning {
  constructor(about) {
    this.about = about;
    this.rows = [];
    const at = Object.fromEntries(about.episode_fields.map((name, i) => [name, i]));
    this.at = at;
    this.curve = new Picture("curve", (ctx, w, h) => this.paintCurve(ctx, w, h));
    this.exploration = new Picture("exploration", (ctx, w, h) => this.paintExploration(ctx, w, h));
  }

  take({ whole, merged, rows }) {
    this.rows = whole ? rows : [...this.rows, ...rows];
    this.merged = merged;
    const { at } = this;
    for (const [name, kind] of [["train", 0], ["eval", 1]]) {
      const own = this.rows.filter((r) => r[at.eval] === kind && r[at.steps] > 0);
      this[name] = { x: own.map((r) => r[at.episode]), y: own.map((r) => r[at.score]), rows: own };
      this[name].mean = movingMean(this[name].y, Math.max(1, Math.round(WINDOW / merged)));
    }
    this.curve.draw();
    this.exploration.draw();
  }

  /** For screen readers. */
  describe(performance) {
    this.curve.describe(performance ? `Learning curve after ${this.train?.x.at(-1) ?? 0} episodes; ${performance} (${this.about.measure.scale})` : "No completed episode yet");
  }

  get end() {
    const done = Math.max(this.train?.x.at(-1) ?? 0, 1);
    return Math.min(this.about.episodes, Math.max(20, done * 1.12)) + 0.5;
  }

  ticks(width) {
    return niceTicks(0.5, this.end, width / 90).filter(Number.isInteger);
  }

  paintCurve(ctx, width, height) {
    const { measure } = this.about;
    const plot = Plot.within(ctx, width, height, { low: 0.5, high: this.end, bare: true, ticks: this.ticks(width) },
      measure.normalized ? this.scale() : this.rawScale(), { bottom: 8, top: 18 }).axes();
    if (measure.normalized) {
      plot.level(0, colours.faint, "random");
      plot.level(1, colours.faint, "reference");
    }
    ctx.fillStyle = colours.soft;
    ctx.textAlign = "left";
    ctx.fillText(measure.normalized ? measure.title : `${measure.title} (${measure.scale})`, 8, 8);
    if (!this.train?.x.length) {
      sayEmpty(ctx, width, height, "no completed episode yet");
      return;
    }
    plot.clip();
    for (const [series, colour] of [[this.train, colours.accent], [this.eval, colours.second]]) {
      plot.dots(series.x, series.y, colour, 1.9, 0.4);
    }
    plot.line(this.eval.x, this.eval.mean, colours.second, 2.2);
    plot.line(this.train.x, this.train.mean, colours.accent, 2.2);
    plot.unclip();
  }

  /** Axis of the normalised reward: the levels 0 and 1 are always seen. */
  scale() {
    const known = (values) => (values ?? []).filter((v) => v !== null);
    const means = [...known(this.train?.mean), ...known(this.eval?.mean)];
    const lowest = Math.max(-1, Math.min(0, ...known(this.train?.y))); // single episodes further out lie at the edge,
    const low = Math.min(-0.15, lowest - 0.05, ...means.map((v) => v - 0.05)); // means never
    const high = Math.max(1.12, ...means.map((v) => v + 0.05));
    return { low, high, ticks: low < -1.2 || high > 1.5 ? undefined : low < -0.4 ? [-1, -0.5, 0, 0.5, 1].filter((t) => t > low) : [0, 0.25, 0.5, 0.75, 1] };
  }

  /** Axis of returns in raw units: what there is. */
  rawScale() {
    const values = [...(this.train?.y ?? []), ...(this.eval?.y ?? [])].filter((v) => v !== null);
    if (!values.length) return { low: 0, high: 1 };
    const low = Math.min(...values), high = Math.max(...values);
    const room = 0.08 * (high - low) || Math.max(1, 0.1 * Math.abs(high));
    return { low: low - room, high: high + room };
  }

  paintExploration(ctx, width, height) {
    const schedule = this.about.exploration;
    const actuators = this.about.actuators.length;
    const deviation = (this.train?.rows ?? []).map((r) => r[this.at.exploration] / actuators);
    const high = Math.max(1.05, Math.min(2, ...[Math.max(0, ...deviation) * 1.1]));
    const plot = Plot.within(ctx, width, height, { low: 0.5, high: this.end, label: "training episode", ticks: this.ticks(width) },
      { low: 0, high, ticks: [0, 0.5, 1] }, { top: 16, bottom: 34 }).axes();
    ctx.fillStyle = colours.soft;
    ctx.textAlign = "left";
    ctx.fillText("exploration, normalised", 8, 7);
    plot.clip();
    plot.dots(this.train?.x ?? [], deviation, colours.soft, 1.7, 0.5);
    plot.line(schedule.episode, schedule.amplitude, colours.violet, 2);
    plot.unclip();
    if (!schedule.episode.length) sayEmpty(ctx, width, height, "no exploration in this run");
    this.exploration.describe(`Exploration amplitude of ${this.about.process}`);
  }
}

function movingMean(values, window) {
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i + 1 - window), i + 1).filter((v) => v !== null);
    return part.length ? part.reduce((a, b) => a + b, 0) / part.length : null;
  });
}
