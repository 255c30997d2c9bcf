// Memory: experiences as points over two of the policy's inputs, on the policy as a surface (de Bruin et al. 2018, figure 4).

import { CanvasView, colours, onChange, paintEmpty } from "./theme.js";
import { Plot, angleLabel, angleTicks, formatOf, isAngle, short, unitText } from "./plot.js";
import { UNKNOWN, bytesOf, css, paintScale, surfaceColour, viridis } from "./palette.js";

const COLOURS = [["age", "age"], ["exploration", "exploration"], ["td", "TD error"], ["reward", "reward"]];
const LEGENDS = { age: "experiences ago", exploration: "exploration (1-norm, normalised)", td: "|TD error|, log scale", reward: "reward" };
const RETRY_MS = 2000;
const MARGIN = { left: 54, top: 16, right: 12, bottom: 38 };

export class Coverage {
  constructor(about, stage) {
    this.about = about;
    this.stage = stage;
    this.colour = "age";
    this.x = 0;
    this.y = Math.min(1, about.inputs.length - 1);
    this.actuator = 0;
    this.policy = 0;
    this.memory = this.surface = null;
    this.layer = document.createElement("canvas");
    this.view = new CanvasView("coverage", (ctx, w, h) => this.paint(ctx, w, h));
    this.addChoices();
    onChange(() => this.redraw());
  }

  get oneSided() {
    const { low, high } = this.about.actuators[this.actuator];
    return low >= 0 || high <= 0;
  }

  addChoices() {
    const set = document.getElementById("colour-choice");
    for (const [value, text] of COLOURS) {
      const label = document.createElement("label"), input = document.createElement("input");
      Object.assign(input, { type: "radio", name: "colour", value, checked: value === this.colour });
      input.addEventListener("change", () => { this.colour = value; this.redraw(); });
      label.append(input, text);
      set.append(label);
    }
    this.addSelect("actuator", this.about.actuators, () => this.actuator, (i) => { this.actuator = i; this.redraw(); });
    if (this.about.inputs.length > 2) {
      this.addSelect("axis-x", this.about.inputs, () => this.x, (i) => { this.x = i; this.fetchSurface(); });
      this.addSelect("axis-y", this.about.inputs, () => this.y, (i) => { this.y = i; this.fetchSurface(); });
    }
  }

  addSelect(id, options, get, set) {
    if (options.length < 2) return;
    const select = document.getElementById(id);
    options.forEach((o, i) => select.append(new Option(o.name.replaceAll("_", " "), i, i === get(), i === get())));
    select.addEventListener("change", () => set(Number(select.value)));
    select.parentElement.hidden = false;
  }

  setMemory(memory) {
    memory.points = memory.positions.map((p) => new Int16Array(bytesOf(p).buffer));
    for (const colour of Object.values(memory.colours)) colour.bytes = bytesOf(colour.levels);
    this.memory = memory;
    this.redraw();
  }

  /** Called with every status, which repeats a request that failed. */
  usePolicy(policy) {
    this.policy = policy;
    this.fetchSurface();
  }

  async fetchSurface() {
    const wanted = `policy=${this.policy}&x=${this.x}&y=${this.y}`, now = performance.now();
    if (!this.policy || this.fetching || wanted === this.shown || (wanted === this.requested && now - this.requestedMs < RETRY_MS)) return;
    this.fetching = true;
    this.requested = wanted;
    this.requestedMs = now;
    try {
      const answer = await fetch(`api/surface?${wanted}`);
      if (answer.ok) {
        const surface = await answer.json();
        surface.bytes = surface.levels.map((l) => new Int8Array(bytesOf(l).buffer));
        this.surface = surface;
        this.shown = wanted;
      }
    } catch { /* the stream reports a lost connection */ }
    this.fetching = false;
    this.redraw();
    this.fetchSurface(); // in case the selection has changed
  }

  /** Redraws surface, points and legends. */
  redraw() {
    this.stale = true;
    this.paintLegends();
    this.view.draw();
  }

  /** Draws surface and points into a separate layer, because the trajectory on top changes every frame. */
  paintLayer() {
    const { view } = this;
    this.stale = false;
    this.layer.width = view.canvas.width;
    this.layer.height = view.canvas.height;
    const ctx = this.layer.getContext("2d");
    ctx.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    ctx.font = view.ctx.font;
    ctx.textBaseline = "middle";
    const plot = this.plot(ctx, view.width, view.height);
    if (this.surface && this.surface.x === this.x && this.surface.y === this.y) this.paintSurface(ctx, plot);
    plot.axes();
    if (this.memory) this.paintPoints(ctx, plot);
  }

  plot(ctx, width, height) {
    const axis = (o) => {
      const round = isAngle(o.unit, o.low, o.high);
      return { low: o.low, high: o.high, ticks: round ? angleTicks(o.low, o.high) : undefined, format: round ? angleLabel : formatOf(o).format };
    };
    const ox = this.about.inputs[this.x], oy = this.about.inputs[this.y];
    return Plot.within(ctx, width, height, { ...axis(ox), label: `${ox.name} in ${formatOf(ox).unit}` }, axis(oy), MARGIN);
  }

  paintSurface(ctx, plot) {
    const { columns, rows } = this.surface, levels = this.surface.bytes[this.actuator];
    const image = new ImageData(columns, rows);
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        const rgb = surfaceColour(levels[r * columns + c] / 127, this.oneSided), at = 4 * ((rows - 1 - r) * columns + c);
        [image.data[at], image.data[at + 1], image.data[at + 2], image.data[at + 3]] = [...rgb, 255];
      }
    }
    const small = document.createElement("canvas");
    small.width = columns;
    small.height = rows;
    small.getContext("2d").putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = true;
    ctx.drawImage(small, plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top);
  }

  paintPoints(ctx, plot) {
    const { points, shown } = this.memory, levels = this.memory.colours[this.colour].bytes;
    const ox = this.about.inputs[this.x], oy = this.about.inputs[this.y];
    const size = Math.max(2, Math.min(3.4, 90 / Math.sqrt(shown) + 0.8));
    const table = Array.from({ length: 255 }, (_, i) => css(viridis(this.colour === "age" ? 1 - i / 254 : i / 254)));
    const order = Array.from({ length: shown }, (_, i) => i).sort((a, b) => this.rank(levels[a]) - this.rank(levels[b]));
    plot.clip();
    ctx.globalAlpha = 0.85;
    for (const i of order) {
      const x = plot.px(ox.centre + (ox.half * points[this.x][i]) / 8192), y = plot.py(oy.centre + (oy.half * points[this.y][i]) / 8192);
      ctx.fillStyle = levels[i] === UNKNOWN ? colours.faint : table[levels[i]];
      ctx.fillRect(x - size / 2, y - size / 2, size, size);
    }
    ctx.globalAlpha = 1;
    plot.unclip();
  }

  /** Drawing order: the newest, most exploratory or most surprising points last, on top. */
  rank(level) {
    return level === UNKNOWN ? -1 : this.colour === "age" ? 255 - level : level;
  }

  paintLegends() {
    const colour = this.memory?.colours[this.colour];
    const points = document.getElementById("legend-points");
    paintScale(points, (v) => viridis(this.colour === "age" ? 1 - v : v));
    const unknown = colour?.bytes.some((b) => b === UNKNOWN) ? " (grey: not yet known)" : "";
    const end = (v) => (v === null ? "–" : short(this.colour === "age" ? Math.round(v) : v));
    setParts("legend-points-text", colour ? [end(colour.low), LEGENDS[this.colour] + unknown, end(colour.high)] : ["", "points: experiences", ""]);
    const a = this.about.actuators[this.actuator];
    paintScale(document.getElementById("legend-surface"), (v) => surfaceColour(2 * v - 1, this.oneSided));
    const of = this.surface ? `${a.name.replaceAll("_", " ")} of policy ${this.surface.policy}, ${unitText(a.unit)}` : "surface: no policy yet";
    setParts("legend-surface-text", this.surface ? [short(a.low), of, short(a.high)] : ["", of, ""]);
    const m = this.memory;
    document.getElementById("memory-note").textContent = m ? `${m.shown.toLocaleString("en")} of ${m.stored.toLocaleString("en")} shown, capacity ${m.capacity.toLocaleString("en")}` : "";
    const range = colour && colour.low !== null ? `, from ${short(colour.low)} to ${short(colour.high)}` : "";
    this.view.describe(m ? `${m.stored} experiences in memory over ${this.about.inputs[this.x].name} and ${this.about.inputs[this.y].name}, coloured by ${LEGENDS[this.colour]}${range}` : "The memory is empty");
  }

  paint(ctx, width, height) {
    const { view } = this;
    if (this.stale || this.layer.width !== view.canvas.width || this.layer.height !== view.canvas.height) this.paintLayer();
    ctx.drawImage(this.layer, 0, 0, width, height);
    const oy = this.about.inputs[this.y];
    ctx.fillStyle = colours.soft;
    ctx.textAlign = "left";
    ctx.fillText(`${oy.name} in ${formatOf(oy).unit}`, MARGIN.left, 7);
    if (!this.memory && !this.surface) paintEmpty(ctx, width, height, this.ended ? "the memory is no longer available" : "the memory is empty");
    this.paintTrajectory(ctx, this.plot(ctx, width, height));
  }

  paintTrajectory(ctx, plot) {
    const now = this.stage.now();
    if (!now) return;
    const s = this.stage.samples, seen = s.input ?? s.observation, xs = seen[this.x], ys = seen[this.y];
    plot.clip();
    ctx.strokeStyle = colours.ink;
    ctx.lineWidth = 1.6;
    ctx.lineJoin = "round";
    const first = Math.max(1, now.index - 160);
    for (let i = first; i <= now.index; i++) {
      if (Math.abs(plot.px(xs[i]) - plot.px(xs[i - 1])) > (plot.right - plot.left) / 2) continue;
      ctx.globalAlpha = 0.85 * ((i - first + 1) / (now.index - first + 1));
      ctx.beginPath();
      ctx.moveTo(plot.px(xs[i - 1]), plot.py(ys[i - 1]));
      ctx.lineTo(plot.px(xs[i]), plot.py(ys[i]));
      ctx.stroke();
    }
    ctx.globalAlpha = 1;
    ctx.fillStyle = colours.ink;
    ctx.strokeStyle = colours.panel;
    ctx.lineWidth = 2;
    ctx.beginPath();
    ctx.arc(plot.px(xs[now.index]), plot.py(ys[now.index]), 6, 0, 2 * Math.PI);
    ctx.fill();
    ctx.stroke();
    plot.unclip();
  }
}

function setParts(id, parts) {
  const element = document.getElementById(id);
  element.replaceChildren(...parts.map((text) => Object.assign(document.createElement("span"), { textContent: text })));
}
