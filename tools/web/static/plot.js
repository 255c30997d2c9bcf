// Formats of numbers and units, and a plot over two signals (time plots: timeplot.js).

import { colours } from "./theme.js";

/** About `count` ticks at round values between low and high. */
export function niceTicks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((m) => m * power >= raw * 0.999) * power;
  const ticks = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) ticks.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return ticks;
}

/** Multiples of pi/2 for an angle over a full turn. */
export function angleTicks(low, high) {
  const half = Math.PI / 2;
  const ticks = [];
  for (let k = Math.ceil(low / half - 1e-6); k <= Math.floor(high / half + 1e-6); k++) ticks.push(k * half);
  return ticks;
}

export function isAngle(unit, low, high) {
  return unit === "rad" && high - low > 6.2 && high - low < 6.4;
}

export function angleLabel(v) {
  const k = Math.round(v / (Math.PI / 2));
  if (k === 0) return "0";
  const sign = k < 0 ? "−" : "";
  const n = Math.abs(k);
  return n % 2 ? `${sign}${n === 1 ? "" : n}π/2` : `${sign}${n === 2 ? "" : n / 2}π`;
}

/** A number in its shortest form. */
export function short(v) {
  if (v === null || v === undefined || !Number.isFinite(v)) return "–";
  const a = Math.abs(v);
  if (a >= 1e6) return `${(v / 1e6).toPrecision(3).replace(/\.0+$/, "")} M`.replace("-", "−");
  if (a >= 1e4) return `${Math.round(v / 1000)} k`.replace("-", "−");
  const text = a === 0 ? "0" : a >= 100 ? v.toFixed(0) : a >= 10 ? v.toFixed(1) : a >= 0.095 ? v.toFixed(2) : v.toPrecision(2);
  return text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "").replace("-", "−");
}

/** Unit in its usual notation. */
export function unitText(unit) {
  return unit.replace("^2", "²").replace("^3", "³");
}

/** Unit and number format of an axis; lengths below 1 m in millimetres. */
export function formatOf(axis) {
  const small = axis.unit === "m" && Math.max(Math.abs(axis.low), Math.abs(axis.high)) < 1;
  return { unit: small ? "mm" : unitText(axis.unit), format: (v) => short(small ? v * 1000 : v) };
}

export class Plot {
  /** `x` and `y`: {low, high, label?, ticks?, format?}; margins in CSS pixels. */
  constructor(ctx, box, x, y) {
    this.ctx = ctx;
    this.x = x;
    this.y = y;
    [this.left, this.top, this.right, this.bottom] = [box.left, box.top, box.right, box.bottom];
  }

  static within(ctx, width, height, x, y, margin = {}) {
    const { left = 44, top = 10, right = 10, bottom = 32 } = margin;
    return new Plot(ctx, { left, top, right: width - right, bottom: height - bottom }, x, y);
  }

  static share(axis, v) {
    return (v - axis.low) / (axis.high - axis.low);
  }

  px(v) {
    return this.left + (this.right - this.left) * Plot.share(this.x, v);
  }

  py(v) {
    return this.bottom - (this.bottom - this.top) * Plot.share(this.y, v);
  }

  axes() {
    const { ctx, x, y } = this;
    ctx.lineWidth = 1;
    ctx.strokeStyle = colours.line;
    ctx.fillStyle = colours.soft;
    const across = x.ticks ?? niceTicks(x.low, x.high, (this.right - this.left) / 80);
    const up = y.ticks ?? niceTicks(y.low, y.high, (this.bottom - this.top) / 38);
    ctx.beginPath();
    for (const v of up) {
      const at = Math.round(this.py(v)) + 0.5;
      ctx.moveTo(this.left, at);
      ctx.lineTo(this.right, at);
    }
    for (const v of across) {
      const at = Math.round(this.px(v)) + 0.5;
      ctx.moveTo(at, this.bottom);
      ctx.lineTo(at, this.bottom + 4);
    }
    ctx.stroke();
    ctx.textAlign = "right";
    for (const v of up) {
      ctx.fillText((y.format ?? short)(v), this.left - 7, this.py(v));
    }
    ctx.textAlign = "center";
    for (const v of across) ctx.fillText((x.format ?? short)(v), this.px(v), this.bottom + 13);
    if (x.label) {
      ctx.textAlign = "right";
      ctx.fillText(x.label, this.right, this.bottom + 27);
    }
    if (y.label) {
      ctx.textAlign = "left";
      ctx.fillText(y.label, this.left + 4, this.top - 1 + 7);
    }
    return this;
  }

  clip() {
    this.ctx.save();
    this.ctx.beginPath();
    this.ctx.rect(this.left, this.top, this.right - this.left, this.bottom - this.top);
    this.ctx.clip();
    return this;
  }

  unclip() {
    this.ctx.restore();
    return this;
  }
}
