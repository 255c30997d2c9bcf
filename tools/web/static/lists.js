// Verdicts on policies, interventions of the shield, events of the run.

import { CanvasView, colours, paintEmpty } from "./theme.js";

const SHOWN = 80, KEPT = 4000;
const VERDICTS = { admitted: "good", "passed probation": "good", refused: "bad", "rolled back": "warn", "failed probation": "warn" };

export class Lists {
  constructor(about) {
    this.about = about;
    this.policies = [];
    this.items = [];
    this.interventions = [];
    this.strip = new CanvasView("policy-strip", (ctx, w, h) => this.paintPolicies(ctx, w, h));
    this.safety = new CanvasView("safety-strip", (ctx, w, h) => this.paintSafety(ctx, w, h));
    this.fill();
  }

  add({ items, policies }) {
    this.items = [...this.items, ...items].slice(-SHOWN);
    for (const [id, verdict, reason] of policies) this.addVerdict(id, verdict, reason);
    this.fill();
  }

  /** Adds a verdict; a policy has one line, updated when it passes its probation or is rolled back. */
  addVerdict(id, verdict, reason) {
    const known = verdict === "refused" ? undefined : this.policies.findLast(([other]) => other === id);
    if (known) known.splice(1, 2, verdict, reason);
    else this.policies.push([id, verdict, reason]);
    if (this.policies.length > KEPT) this.policies.shift();
  }

  clear() {
    this.items = [];
    this.policies = [];
  }

  /** Sets the rows of episodes; one row is the sum of up to `merged` episodes. */
  setEpisodes(rows, at, merged) {
    this.merged = merged;
    this.interventions = rows.filter((r) => r[at.eval] === 0).map((r) => [r[at.episode], r[at.interventions]]);
    this.safety.draw();
  }

  fill() {
    const fine = ([, verdict]) => VERDICTS[verdict] === "good";
    const newest = this.policies.filter(fine).slice(-1);
    const others = this.policies.filter((p) => !fine(p)).slice(-SHOWN).reverse();
    const policyLines = [...newest, ...others].map(([id, verdict, reason]) => line(named(id), VERDICTS[verdict] ?? "note", reason ? `${verdict}: ${reason}` : verdict));
    if (newest.length && !others.length) policyLines.push(remark("none refused or rolled back"));
    show("policy-list", policyLines, "no policy offered yet");
    const eventLines = [...this.items].reverse().map((e) => line(clock(e.t), e.level, e.text));
    show("events", eventLines, "nothing to report");
    this.strip.draw();
    const count = (level) => this.policies.filter(([, v]) => VERDICTS[v] === level).length;
    this.strip.describe(`${this.policies.length} policies: ${count("good")} admitted, ${count("bad")} refused, ${count("warn")} rolled back`);
  }

  paintPolicies(ctx, width, height) {
    const n = this.policies.length;
    if (!n) {
      paintEmpty(ctx, width, height, "no policy offered yet");
      return;
    }
    const step = Math.min(14, (width - 4) / n);
    this.policies.forEach(([, verdict], i) => {
      const level = VERDICTS[verdict] ?? "good";
      ctx.fillStyle = colours[level];
      ctx.globalAlpha = level === "good" ? 0.75 : 1;
      const tall = level === "good" ? 0.55 : 0.95;
      const from = Math.floor(2 + i * step), to = Math.floor(2 + (i + 1) * step);
      ctx.fillRect(from, (height - 18) * (1 - tall), Math.max(1, to - from - (step > 4 ? 1 : 0)), (height - 18) * tall);
    });
    ctx.globalAlpha = 1;
    ctx.fillStyle = colours.soft;
    ctx.textAlign = "left";
    ctx.fillText(named(this.policies[0][0]), 2, height - 8);
    if (n > 1) {
      ctx.textAlign = step * n > width / 2 ? "right" : "left";
      ctx.fillText(named(this.policies[n - 1][0]), step * n > width / 2 ? step * n : step * n + 70, height - 8);
    }
  }

  paintSafety(ctx, width, height) {
    const rows = this.interventions, most = Math.max(0, ...rows.map(([, n]) => n));
    if (!rows.length) {
      paintEmpty(ctx, width, height, "no completed episode yet");
      return;
    }
    const last = Math.max(20, rows.at(-1)[0]), room = width - 4;
    ctx.fillStyle = colours.warn;
    for (const [episode, n] of rows) {
      if (!n) continue;
      const tall = (height - 20) * (n / most);
      ctx.fillRect(2 + (room * (episode - 1)) / last, height - 18 - tall, Math.max(1.5, room / last - 0.5), tall);
    }
    ctx.fillStyle = colours.line;
    ctx.fillRect(2, height - 18, room, 1);
    ctx.fillStyle = colours.soft;
    ctx.textAlign = "left";
    const per = this.merged > 1 ? `per ${this.merged} episodes` : "per episode";
    const what = width < 480 ? "interventions" : `ticks with an intervention, ${per}`;
    ctx.fillText(most ? `${what} (most: ${most})` : "no interventions", 2, height - 8);
    ctx.textAlign = "right";
    ctx.fillText(`episode ${last}`, width - 2, height - 8);
    this.safety.describe(`Interventions ${per}; at most ${most}`);
  }
}

/** A refused policy has no id. */
function named(id) {
  return id ? `policy ${id}` : "a policy";
}

function line(when, level, text) {
  const item = document.createElement("li");
  item.className = level;
  item.append(Object.assign(document.createElement("span"), { className: "what", textContent: when }),
    Object.assign(document.createElement("span"), { textContent: text }));
  return item;
}

function show(id, lines, empty) {
  const list = document.getElementById(id);
  list.replaceChildren(...(lines.length ? lines : [remark(empty)]));
}

function remark(text) {
  return Object.assign(document.createElement("li"), { className: "empty", textContent: text });
}

function clock(unixSeconds) {
  return typeof unixSeconds === "number" ? new Date(unixSeconds * 1000).toLocaleTimeString("en-GB") : "";
}
