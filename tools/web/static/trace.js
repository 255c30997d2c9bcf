// The last seconds as curves: a row for each observation, one for the actions; bands mark the shield's interventions.

import { colours, sayEmpty } from "./theme.js";
import { Plot, angleLabel, isAngle, short, unitText, written } from "./plot.js";

const SPAN_S = 8;
const ROWS = 3;

export function drawTrace(ctx, width, height, about, stage) {
  const s = stage.samples;
  if (!s) {
    sayEmpty(ctx, width, height, "no samples yet");
    return;
  }
  const end = stage.clip ? s.t[s.t.length - 1] : stage.head;
  const start = stage.clip ? s.t[0] : end - SPAN_S;
  const last = stage.indexAt(stage.head), first = stage.clip ? 0 : Math.max(0, stage.indexAt(start));
  const shown = about.observations.slice(0, ROWS);
  const rows = shown.length + 1;
  const foot = 18, gap = 18, h = (height - foot - gap * rows) / rows;
  const part = (values) => values.slice(first, last + 1);
  const times = part(s.t), begins = part(s.begins);
  for (let row = 0; row < rows; row++) {
    const action = row === rows - 1;
    const axis = action ? spanOf(about.actuators) : shown[row];
    const round = isAngle(axis.unit, axis.low, axis.high);
    const top = gap + row * (h + gap);
    const zero = (0 - axis.low) / (axis.high - axis.low);
    const ticks = zero * h > 17 && (1 - zero) * h > 17 ? [axis.low, 0, axis.high] : [axis.low, axis.high];
    const plot = new Plot(ctx, { left: 46, top, right: width - 8, bottom: top + h },
      { low: start, high: end, ticks: [], bare: true }, { low: axis.low, high: axis.high, ticks, inset: true, format: round ? angleLabel : written(axis).format });
    plot.axes().clip();
    bands(plot, s, first, last);
    if (action) {
      about.actuators.forEach((_, j) => {
        const colour = about.actuators.length > 1 ? colours.series[j % colours.series.length] : colours.second;
        if (about.actuators.length === 1) plot.line(times, part(s.policy[j]), colours.faint, 1, 0, begins);
        plot.line(times, part(s.applied[j]), colour, about.actuators.length > 1 ? 1 : 1.5, 0, begins);
      });
    } else {
      plot.line(times, part(s.observation[row]), colours.accent, 1.6, round ? 2 * Math.PI : 0, begins);
    }
    plot.unclip();
    ctx.fillStyle = colours.soft;
    ctx.textAlign = "left";
    ctx.fillText(action ? actionLabel(about, width) : `${axis.name} in ${written(axis).unit}`, 46, top - 9);
  }
  ctx.textAlign = "right";
  ctx.fillText(stage.clip ? `${short(end - start)} s, one episode` : `the last ${SPAN_S} s`, width - 8, height - 7);
}

function spanOf(actuators) {
  return { low: Math.min(...actuators.map((a) => a.low)), high: Math.max(...actuators.map((a) => a.high)), unit: actuators[0].unit };
}

function actionLabel(about, width) {
  const unit = unitText(about.actuators[0].unit);
  const one = about.actuators.length === 1;
  if (width < 430) return one ? `${about.actuators[0].name} in ${unit} (grey: policy)` : `applied actions in ${unit}`;
  return one ? `${about.actuators[0].name} in ${unit}: applied, and the policy's (grey)` : `applied actions in ${unit} (colours as above)`;
}

function bands(plot, s, first, last) {
  const { ctx } = plot;
  ctx.fillStyle = colours.warn;
  ctx.globalAlpha = 0.25;
  for (let i = first; i <= last; i++) {
    if (!s.rule[i]) continue;
    const to = i < last ? s.t[i + 1] : s.t[i] + 0.02;
    ctx.fillRect(plot.px(s.t[i]), plot.top, Math.max(1.5, plot.px(to) - plot.px(s.t[i])), plot.bottom - plot.top);
  }
  ctx.globalAlpha = 1;
}
