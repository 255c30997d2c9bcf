// Learning curve and, below it, exploration.

import { colours } from "./theme.js";
import { niceTicks, short } from "./plot.js";
import { Span, TimePlot } from "./timeplot.js";

/* global uPlot */
const WINDOW = 20;

export class Learning {
  constructor(about) {
    this.about = about;
    this.rows = [];
    this.column = Object.fromEntries(about.episode_fields.map((name, i) => [name, i]));
    const span = new Span(), { measure } = about, { episode, amplitude } = about.exploration;
    const x = { range: () => [0.5, this.end], name: (n) => `episode ${short(n)}`,
      splits: (low, high, u) => niceTicks(low, high, u.width / 90).filter(Number.isInteger) };
    this.curve = new TimePlot("curve", span, {
      title: measure.normalized ? measure.title : `${measure.title} (${measure.scale})`, x, y: {
        range: () => { const { low, high } = this.scale(); return [low, high]; },
        splits: (low, high, u) => this.scale().ticks ?? niceTicks(low, high, u.height / 38),
      },
      series: [dots("accent", { text: (_, i) => short(this.scores[0][i]) }), dots("second", { text: (_, i) => short(this.scores[1][i]) }),
        { role: "accent", label: "training", width: 2.2, spanGaps: true }, { role: "second", label: "evaluation, no noise", width: 2.2, spanGaps: true }],
      over: measure.normalized ? (u, ctx, width) => [[0, "random"], [1, "reference"]].forEach(([v, text]) => level(u, ctx, width, v, text)) : undefined,
    });
    this.exploration = new TimePlot("exploration", span, {
      title: "exploration", x: { ...x, shown: true }, y: { range: () => [0, this.highest], splits: [0, 0.5, 1] },
      series: [dots("soft", { label: "mean deviation per actuator" }), { role: "violet", label: "scheduled amplitude", width: 2, spanGaps: true }],
    });
    this.exploration.note(episode.length ? "" : "none in this run");
    this.planned = { x: episode, y: amplitude };
    this.add({ complete: true, merged: 1, rows: [] });
  }

  /** Adds rows; with `complete` they replace all earlier ones. */
  add({ complete, merged, rows }) {
    this.rows = complete ? rows : [...this.rows, ...rows];
    this.merged = merged;
    const { column: at } = this;
    for (const [name, kind] of [["train", 0], ["eval", 1]]) {
      const own = this.rows.filter((r) => r[at.eval] === kind && r[at.steps] > 0);
      this[name] = { x: own.map((r) => r[at.episode]), y: own.map((r) => r[at.score]), rows: own };
      this[name].mean = movingMean(this[name].y, Math.max(1, Math.round(WINDOW / merged)));
    }
    const { train, eval: evaluated } = this, { low, high } = this.scale();
    const table = uPlot.join([[train.x, train.y, train.mean], [evaluated.x, evaluated.y, evaluated.mean]]);
    this.scores = [table[1], table[3]];
    const inside = (column) => column.map((v) => (v === null || v === undefined ? v : Math.min(high, Math.max(low, v))));
    this.curve.show([table[0], inside(table[1]), inside(table[3]), table[2], table[4]]);
    this.curve.note(train.x.length ? "" : "no completed episode yet");
    const deviation = train.rows.map((r) => r[at.exploration] / this.about.actuators.length);
    this.highest = Math.max(1.05, Math.min(2, Math.max(0, ...deviation) * 1.1));
    this.exploration.show(uPlot.join([[train.x, deviation], [this.planned.x, this.planned.y]]));
  }

  /** For screen readers. */
  describe(performance) {
    this.curve.describe(performance ? `Learning curve after ${this.train.x.at(-1) ?? 0} episodes; ${performance} (${this.about.measure.scale})` : "No completed episode yet");
    this.exploration.describe(`Exploration amplitude of ${this.about.process}`);
  }

  get end() {
    const done = Math.max(this.train?.x.at(-1) ?? 0, 1);
    return Math.min(this.about.episodes, Math.max(20, done * 1.12)) + 0.5;
  }

  scale() {
    return this.about.measure.normalized ? this.normalizedScale() : this.rawScale();
  }

  /** Axis of the normalised reward, which always includes 0 and 1. */
  normalizedScale() {
    const known = (values) => (values ?? []).filter((v) => v !== null);
    const means = [...known(this.train?.mean), ...known(this.eval?.mean)];
    const lowest = Math.max(-1, Math.min(0, ...known(this.train?.y))); // single episodes below -1 are drawn at the edge,
    const low = Math.min(-0.15, lowest - 0.05, ...means.map((v) => v - 0.05)); // means are not
    const high = Math.max(1.12, ...means.map((v) => v + 0.05));
    return { low, high, ticks: low < -1.2 || high > 1.5 ? undefined : low < -0.4 ? [-1, -0.5, 0, 0.5, 1].filter((t) => t > low) : [0, 0.25, 0.5, 0.75, 1] };
  }

  /** Axis of returns in raw units. */
  rawScale() {
    const values = [...(this.train?.y ?? []), ...(this.eval?.y ?? [])].filter((v) => v !== null);
    if (!values.length) return { low: 0, high: 1 };
    const low = Math.min(...values), high = Math.max(...values);
    const margin = 0.08 * (high - low) || Math.max(1, 0.1 * Math.abs(high));
    return { low: low - margin, high: high + margin };
  }
}

function dots(role, more) {
  return { role, width: 0, paths: () => null, points: { show: true, size: 4, width: 0, fill: () => `${colours[role]}80` }, ...more };
}

function level(u, ctx, width, value, text) {
  const y = Math.round(u.valToPos(value, "y")) + 0.5;
  ctx.strokeStyle = ctx.fillStyle = colours.faint;
  ctx.setLineDash([4, 4]);
  ctx.beginPath();
  ctx.moveTo(0, y);
  ctx.lineTo(width, y);
  ctx.stroke();
  ctx.textAlign = "right";
  ctx.fillText(text, width - 2, y - 8);
}

function movingMean(values, window) {
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i + 1 - window), i + 1).filter((v) => v !== null);
    return part.length ? part.reduce((a, b) => a + b, 0) / part.length : null;
  });
}
