// Curves of the last seconds or of an episode: a plot per observation, one for the actions; bands mark interventions.

import { colours } from "./theme.js";
import { angleLabel, formatOf, isAngle, niceTicks, short, unitText } from "./plot.js";
import { Span, TimePlot, bands, withBreaks } from "./timeplot.js";

const SPAN_S = 8;
const ROWS = 3;
const ROW_PX = 84;

export class Trace {
  constructor(about, stage, { held }) {
    this.about = about;
    this.stage = stage;
    this.element = document.getElementById("trace");
    this.span = new Span({ pressed: () => held(true), reset: () => held(false), moved: (t) => stage.seek(t) });
    const targets = Object.values(about.followed ?? {});
    const shown = about.observations.map((axis, at) => ({ ...axis, at })).filter((o) => !targets.includes(o.name)).slice(0, ROWS);
    this.element.style.minHeight = `${ROW_PX * (shown.length + 1) + 14}px`;
    this.rows = shown.map((axis) => this.observation(axis));
    this.rows.push(this.actions());
  }

  /** [start, end] of the displayed interval. */
  window() {
    const { samples: s, clip, head, end = head } = this.stage.shown;
    if (!s) return [0, SPAN_S];
    return clip ? [s.t[0], s.t[s.t.length - 1]] : [end - SPAN_S, end];
  }

  get origin() {
    return this.stage.shown.clip ? 0 : this.window()[1];
  }

  row(title, axis, series, columns, turn, last) {
    const zero = -axis.low / (axis.high - axis.low);
    const ticks = zero > 0.25 && zero < 0.75 ? [axis.low, 0, axis.high] : [axis.low, axis.high];
    const element = document.createElement("div");
    this.element.append(element);
    const seconds = (t) => `${short(Math.round(100 * (t - this.origin)) / 100)} s`;
    const plot = new TimePlot(element, this.span, {
      title, series,
      x: { range: () => this.window(), shown: last, format: seconds, name: seconds,
        splits: (low, high, u) => niceTicks(low - this.origin, high - this.origin, u.width / 90).map((t) => t + this.origin) },
      y: { range: () => [axis.low, axis.high], splits: ticks, format: isAngle(axis.unit, axis.low, axis.high) ? angleLabel : formatOf(axis).format },
      under: (u, ctx, w, h) => bands(u, ctx, h, this.interventions(), colours.warn),
    });
    return { plot, columns, turn, low: axis.low };
  }

  observation(axis) {
    const { unit, format } = formatOf(axis);
    const turn = isAngle(axis.unit, axis.low, axis.high) ? 2 * Math.PI : 0;
    const text = (v) => `${format(v)} ${unit}`, title = `${axis.name.replaceAll("_", " ")} in ${unit}`;
    const name = this.about.followed?.[axis.name], target = this.about.observations.findIndex((o) => o.name === name);
    const series = [{ role: "accent", width: 1.6, text }];
    if (target < 0) return this.row(title, axis, series, (s) => [s.observation[axis.at]], turn, false);
    const followed = { role: "faint", label: name.replaceAll("_", " "), width: 1.2, text };
    series[0].label = axis.name.replaceAll("_", " ");
    return this.row(title, axis, [followed, ...series], (s) => [s.observation[target], s.observation[axis.at]], turn, false);
  }

  actions() {
    const { actuators } = this.about, [first] = actuators, unit = unitText(first.unit);
    const axis = { low: Math.min(...actuators.map((a) => a.low)), high: Math.max(...actuators.map((a) => a.high)), unit: first.unit };
    const text = (v) => `${short(v)} ${unit}`;
    if (actuators.length === 1) {
      const series = [{ role: "faint", label: "policy", width: 1, text }, { role: "second", label: "applied", width: 1.5, text }];
      return this.row(`${first.name.replaceAll("_", " ")} in ${unit}`, axis, series, (s) => [s.policy[0], s.applied[0]], 0, true);
    }
    const roles = ["accent", "second", "violet", "good"];
    const series = actuators.map((a, j) => ({ role: roles[j % roles.length], label: a.name.replaceAll("_", " "), width: 1, text: short }));
    return this.row(`applied in ${unit}`, axis, series, (s) => s.applied, 0, true);
  }

  /** Intervals in which a rule of the shield acted. */
  *interventions() {
    const { samples: s } = this.stage.shown;
    if (!s) return;
    let from = null;
    for (let i = this.first; i <= this.last; i++) {
      if (s.rule[i] && from === null) from = s.t[i];
      if (!s.rule[i] && from !== null) {
        yield [from, s.t[i]];
        from = null;
      }
    }
    if (from !== null) yield [from, s.t[this.last] + 0.02];
  }

  draw() {
    const { samples: s, clip, head, end = head } = this.stage.shown;
    if (!s) return;
    const [start] = this.window();
    this.first = clip ? 0 : Math.max(0, this.stage.indexAt(start));
    this.last = this.stage.indexAt(end);
    const now = `${start} ${this.first} ${this.last}`;
    if (s === this.drawn && now === this.moment) return;
    [this.drawn, this.moment] = [s, now];
    const part = (values) => values.slice(this.first, this.last + 1);
    const times = part(s.t), begins = part(s.begins);
    for (const { plot, columns, turn, low } of this.rows) plot.show(withBreaks(times, columns(s).map(part), begins, turn, low));
  }
}
