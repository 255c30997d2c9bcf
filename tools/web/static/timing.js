// Punctuality of the loop: durations on a logarithmic axis, as shares of all ticks.

import { Picture, colours, sayEmpty } from "./theme.js";
import { Plot } from "./plot.js";

const LEAST_SHARE = 1e-6;

export class Timing {
  constructor(about) {
    this.about = about;
    this.figures = null;
    this.picture = new Picture("histogram", (ctx, w, h) => this.paint(ctx, w, h));
    if (about.lockstep) {
      document.getElementById("key-lateness").hidden = true;
      document.getElementById("timing-note").textContent = "virtual time, no lateness";
    }
  }

  take(figures) {
    this.figures = figures;
    this.picture.draw();
    this.table(figures);
  }

  /** For screen readers. */
  describe(words) {
    if (words["time of a tick"]) this.picture.describe(`Work in a tick: ${words["time of a tick"]}; ${words.ticks}`);
  }

  /** Takes the summary of a finished run: its last figures, or all of them for a run that was not seen live. */
  takeSummary(summary, histograms) {
    if (!summary.tick_us) return;
    this.table(summary);
    if (this.figures) return;
    this.over = true;
    const none = { first: 0, counts: [] };
    if (histograms.tick) this.figures = { ticks: summary.ticks, tick_us: histograms.tick, lateness_us: histograms.lateness ?? none };
    this.picture.draw();
  }

  table(figures) {
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

  paint(ctx, width, height) {
    const f = this.figures;
    if (!f || !f.tick_us.counts.length) {
      sayEmpty(ctx, width, height, this.over ? "histogram not saved; percentiles below" : "no tick yet");
      return;
    }
    const edges = this.about.edges_us;
    const drawn = [f.tick_us, f.lateness_us].filter((h) => h.counts.length);
    const low = Math.max(0.1, Math.min(...drawn.map((h) => edges[h.first + mostly(h.counts)])));
    const high = Math.max(this.about.lockstep ? 0 : this.about.period_us * 1.3, ...drawn.map((h) => edges[h.first + h.counts.length]));
    const floor = Math.max(LEAST_SHARE, 0.5 / f.ticks);
    const plot = Plot.within(ctx, width, height,
      { low, high, log: true, ticks: decades(low, high), format: duration },
      { low: floor, high: 1, log: true, ticks: [1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6].filter((t) => t >= floor), format: percent }, { top: 26, bottom: 24, left: 60 }).axes();
    ctx.fillStyle = colours.soft;
    ctx.textAlign = "left";
    ctx.fillText("share of ticks", 8, 8);
    plot.clip();
    this.bars(plot, f.lateness_us, colours.accent);
    this.bars(plot, f.tick_us, colours.second);
    if (this.about.period_us < high && !this.about.lockstep) {
      const x = plot.px(this.about.period_us);
      ctx.strokeStyle = colours.bad;
      ctx.setLineDash([4, 3]);
      ctx.beginPath();
      ctx.moveTo(x, plot.top);
      ctx.lineTo(x, plot.bottom);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.fillStyle = colours.bad;
      ctx.textAlign = "right";
      ctx.fillText("period", x - 5, plot.top + 8);
    }
    plot.unclip();
  }

  bars(plot, histogram, colour) {
    const { ctx } = plot, edges = this.about.edges_us;
    const total = histogram.counts.reduce((a, b) => a + b, 0);
    if (!total) return;
    ctx.beginPath();
    ctx.moveTo(plot.px(edges[histogram.first]), plot.bottom);
    histogram.counts.forEach((n, i) => {
      const y = n ? plot.py(Math.max(plot.y.low, n / total)) : plot.bottom;
      ctx.lineTo(plot.px(edges[histogram.first + i]), y);
      ctx.lineTo(plot.px(edges[histogram.first + i + 1]), y);
    });
    ctx.lineTo(plot.px(edges[histogram.first + histogram.counts.length]), plot.bottom);
    ctx.globalAlpha = 0.28;
    ctx.fillStyle = colour;
    ctx.fill();
    ctx.globalAlpha = 1;
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.4;
    ctx.stroke();
  }
}

/** Nearly empty bins at the lower end. */
function mostly(counts) {
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
