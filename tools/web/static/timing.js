// Punctuality of the loop: histograms of durations, as shares of all ticks, on logarithmic axes.

import { colours } from "./theme.js";
import { Span, TimePlot } from "./timeplot.js";

/* global uPlot */
const MIN_SHARE = 1e-6;

export class Timing {
  constructor(about) {
    this.about = about;
    this.figures = null;
    [this.low, this.high, this.floor] = [1, 1000, MIN_SHARE];
    const paths = uPlot.paths.stepped({ align: 1 });
    const histogram = (role, label) => ({ role, label, width: 1.4, paths, fill: () => `${colours[role]}47`, text: (v) => (v > this.floor ? percent(v) : "0 %") });
    this.plot = new TimePlot("histogram", new Span(), {
      title: "share of ticks", margin: 60,
      x: { log: true, shown: true, range: () => [this.low, this.high], splits: decades, format: duration, name: (us) => `from ${duration(us)}` },
      y: { log: true, range: () => [this.floor, 1], splits: (low) => [1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6].filter((v) => v >= low), format: percent },
      series: [histogram("accent", about.lockstep ? "" : "lateness"), histogram("second", "work in a tick")],
      over: (u, ctx, w, h) => this.paintPeriod(u, ctx, w, h),
    });
    this.draw();
    if (about.lockstep) {
      document.getElementById("timing-note").textContent = "virtual time, no lateness";
    }
  }

  setFigures(figures) {
    this.figures = figures;
    this.draw();
    this.fillTable(figures);
  }

  /** For screen readers. */
  describe(words) {
    if (words["time of a tick"]) this.plot.describe(`Work in a tick: ${words["time of a tick"]}; ${words.ticks}`);
  }

  /** Shows the summary of a finished run; its histograms only if none was received live. */
  setSummary(summary, histograms) {
    if (!summary.tick_us) return;
    this.fillTable(summary);
    if (this.figures) return;
    this.ended = true;
    const none = { first: 0, counts: [] };
    if (histograms.tick) this.figures = { ticks: summary.ticks, tick_us: histograms.tick, lateness_us: histograms.lateness ?? none };
    this.draw();
  }

  fillTable(figures) {
    const rows = [["work in a tick", figures.tick_us]];
    if (!this.about.lockstep) rows.unshift(["lateness", figures.lateness_us]);
    document.getElementById("timing-rows").replaceChildren(...rows.map(([name, h]) => {
      const row = document.createElement("tr"), head = document.createElement("th");
      head.scope = "row";
      head.textContent = name;
      row.append(head, ...[h.p50, h.p99, h.p999, h.max].map((v) => Object.assign(document.createElement("td"), { textContent: duration(v) })));
      return row;
    }));
  }

  draw() {
    const f = this.figures;
    if (!f || !f.tick_us.counts.length) {
      this.plot.note(this.ended ? "histogram not saved; percentiles below" : "no tick yet");
      return;
    }
    this.plot.note("");
    const edges = this.about.edges_us, kinds = [f.lateness_us, f.tick_us], drawn = kinds.filter((h) => h.counts.length);
    const first = Math.min(...drawn.map((h) => h.first)), end = Math.max(...drawn.map((h) => h.first + h.counts.length));
    this.low = Math.max(0.1, Math.min(...drawn.map((h) => edges[h.first + sparseBins(h.counts)])));
    this.high = Math.max(this.about.lockstep ? 0 : this.about.period_us * 1.3, edges[end]);
    this.floor = Math.max(MIN_SHARE, 0.5 / f.ticks);
    const shares = kinds.map((h) => {
      const total = h.counts.reduce((a, b) => a + b, 0);
      return Array.from({ length: end - first + 1 }, (_, i) => (total ? Math.max(this.floor, (h.counts[first + i - h.first] ?? 0) / total) : null));
    });
    this.plot.show([edges.slice(first, end + 1), ...shares]);
  }

  paintPeriod(u, ctx, width, height) {
    if (this.about.lockstep || this.about.period_us >= this.high) return;
    const x = u.valToPos(this.about.period_us, "x");
    ctx.strokeStyle = ctx.fillStyle = colours.bad;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.moveTo(x, 0);
    ctx.lineTo(x, height);
    ctx.stroke();
    ctx.textAlign = "right";
    ctx.fillText("period", x - 5, 8);
  }
}

/** Number of nearly empty bins at the lower end. */
function sparseBins(counts) {
  const total = counts.reduce((a, b) => a + b, 0);
  let seen = 0, i = 0;
  while (i < counts.length - 1 && seen + counts[i] < total * 4e-3) seen += counts[i++];
  return i;
}

function decades(low, high) {
  const ticks = [];
  for (let e = Math.ceil(Math.log10(low)); 10 ** e <= high; e++) ticks.push(10 ** e);
  return ticks;
}

export function duration(us) {
  if (us === null || us === undefined) return "–";
  return us >= 1e6 ? `${+(us / 1e6).toPrecision(3)} s` : us >= 1000 ? `${+(us / 1000).toPrecision(3)} ms` : `${+us.toPrecision(3)} µs`;
}

function percent(share) {
  return `${+(share * 100).toPrecision(2)} %`;
}
