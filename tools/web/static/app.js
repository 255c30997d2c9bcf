// Entry point of the page: passes the server's messages to the modules that draw.

import { CanvasView, paintEmpty } from "./theme.js";
import { formatOf, short } from "./plot.js";
import { subscribe } from "./stream.js";
import { connectStops, disableStops, showActuators } from "./stop.js";
import { Stage } from "./stage.js";
import { drawRig } from "./drawing.js";
import { Trace } from "./trace.js";
import { Camera } from "./camera.js";
import { Coverage } from "./coverage.js";
import { Learning } from "./learning.js";
import { Timing, duration } from "./timing.js";
import { Lists } from "./lists.js";

const KINDS = ["about", "status", "episodes", "events", "figures", "memory", "motion", "clip", "ended"];
const GOOD = ["running", "resetting", "ready"], BAD = ["fault"];
const $ = (id) => document.getElementById(id);
const page = { received: new Set() };

$("hold").addEventListener("click", () => hold(!page.stage.held));
if (location.search) history.replaceState(null, "", location.pathname); // the token is in the cookie by now
connectStops(notice);
subscribe(KINDS, (kind, data) => {
  handle[kind](data);
  page.received.add(kind);
  document.documentElement.dataset.received = [...page.received].sort().join(" ");
}, showConnection);

const handle = {
  about(about) {
    if (page.about) { // after a reconnection, or from a resumed run, possibly with more episodes
      Object.assign(page.about, about);
      page.lists.clear();
      return;
    }
    page.about = about;
    $("title").textContent = `${about.rig} · ${about.task}`;
    $("details").textContent = `${about.strategy}, ${short(about.rate_hz)} Hz, ${about.pace}, ${about.process}, seed ${about.seed} · ${about.name}`;
    document.title = `Onrig: ${about.rig}`;
    $("lease").textContent = `the lease: ${about.lease}`;
    $("lease").hidden = !about.lease;
    showPromise();
    page.stage = new Stage();
    page.rig = new CanvasView("rig", paintRig);
    page.trace = new Trace(about, page.stage, { held: hold });
    page.coverage = about.cameras.length ? new Camera(about, page.stage) : new Coverage(about, page.stage);
    page.learning = new Learning(about);
    page.timing = new Timing(about);
    page.lists = new Lists(about);
    addReadouts(about);
    requestAnimationFrame(animate);
  },
  status(status) {
    page.status = status;
    showState();
    showActuators(status.actuators, notice);
    if (status.phase === "running") {
      showProgress(status.episode);
      if (status.policy) page.coverage.usePolicy(status.policy);
    }
    if (status.phase === "ended") disableStops();
  },
  episodes(episodes) {
    page.learning.add(episodes);
    page.lists.setEpisodes(page.learning.rows, page.learning.column, page.learning.merged);
    const last = page.learning.rows.at(-1);
    if (last && page.status?.phase !== "running") {
      showProgress(last[page.learning.column.episode]);
      page.coverage.usePolicy(last[page.learning.column.policy]);
    }
  },
  events(events) { page.lists.add(events); },
  figures(figures) {
    page.timing.setFigures(figures);
    showFacts(figures.words);
  },
  memory(memory) { page.coverage.setMemory(memory); },
  motion(samples) { page.stage.extend(samples); },
  clip(clip) { page.stage.play(clip); },
  ended(ended) {
    disableStops();
    page.ended = page.coverage.ended = true;
    page.stage.loops = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    page.timing.setSummary(ended.summary, ended.histograms);
    showFacts(ended.words);
    const why = ended.words.ended, { actuators } = ended.words;
    notice(`The run has ended${why ? `: ${why}` : ""}.${actuators ? ` Actuators ${actuators}.` : ""} This is its final state.`);
  },
};

/** Shows the state in one word.  Interventions of the shield appear only in the readout of the displayed record. */
function showState() {
  const { status } = page, now = page.stage.now();
  const state = status.state === "fallback" && now ? "running" : status.state;
  const text = status.phase === "running" ? (status.stopping ? "stopping" : state) : status.phase;
  const level = status.stopping ? "warn" : GOOD.includes(text) ? "good" : BAD.includes(text) ? "bad" : status.phase === "running" ? "warn" : "";
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = `pill ${level}`;
}

/** Pauses or resumes the motion. */
function hold(paused) {
  if (paused) page.stage.hold();
  else page.stage.release();
  const held = page.stage.held !== null;
  if (!held) page.trace?.span.show(null);
  $("hold").textContent = held ? "resume" : "pause";
  $("hold").setAttribute("aria-pressed", held);
}

/** Shows the run's facts, in the same words as the terminal and the report. */
function showFacts(words) {
  const show = (id, text) => { if (text) $(id).textContent = text; };
  const lost = words["records lost"];
  show("learning-note", words.performance && `${words.performance} (mean of 20)`);
  show("missed", words.ticks && `${words.ticks}; period ${duration(page.about.period_us)}`);
  show("policies-note", words.policies);
  show("safety-note", words.shield && `the shield ${words.shield}; it enforces ${page.about.kept}`);
  showPromise(words.promise);
  show("foot", [words.learner, words.memory, lost && `${lost} records lost`].filter(Boolean).join(" · "));
  page.learning.describe(words.performance);
  page.timing.describe(words);
}

/** Shows the basis of the limits in one word, with a sentence that explains it. */
function showPromise(withdrawn) {
  const { basis, sentence } = page.about.promise, pill = $("promise");
  pill.textContent = withdrawn ? `${basis}: ${withdrawn}` : basis;
  $("promise-means").textContent = `the promise, ${basis}: ${sentence}`;
  $("promise-means").hidden = false;
  pill.className = `pill ${withdrawn ? "bad" : basis === "none" ? "warn" : ""}`;
  pill.hidden = false;
}

function showProgress(episode) {
  const { episodes } = page.about;
  $("count").textContent = `${episode} / ${episodes}`;
  $("done").style.width = `${Math.min(100, (100 * episode) / episodes)}%`;
  $("progress").setAttribute("aria-valuemax", episodes);
  $("progress").setAttribute("aria-valuenow", episode);
}

function paintRig(ctx, width, height) {
  const now = page.stage.now();
  drawRig(ctx, width, height, page.about, now, page.stage.samples);
  if (!now) paintEmpty(ctx, width, height - 20, page.ended ? "no motion: the run has no readable log" : "no motion yet");
}

function addReadouts(about) {
  const fields = [...about.observations, ...(about.actuators.length === 1 ? about.actuators : []), { name: "reward" }, { name: "amplitude" }, { name: "shield" }];
  page.values = fields.map((field) => {
    const box = document.createElement("div"), term = document.createElement("dt"), value = document.createElement("dd");
    term.textContent = field.name.replaceAll("_", " ");
    value.textContent = "–";
    box.append(term, value);
    $("readouts").append(box);
    return [field, value];
  });
}

function showReadouts(now) {
  const { about } = page;
  const shield = now.rule ? about.rules[now.rule] : "idle";
  const numbers = [...now.observation, ...(about.actuators.length === 1 ? now.applied : []), now.reward, now.amplitude, shield];
  page.values.forEach(([field, element], i) => {
    const v = numbers[i];
    const unit = field.unit ? formatOf(field).unit : "", scale = unit === "mm" && field.unit === "m" ? 1000 : 1;
    const text = typeof v === "string" ? v : fixed(v === null ? v : scale * v);
    if (element.dataset.text === text) return;
    element.dataset.text = text;
    element.className = field.name === "shield" && now.rule ? "acts" : "";
    element.replaceChildren(text, Object.assign(document.createElement("small"), { textContent: unit ? ` ${unit}` : "" }));
  });
}

function fixed(v) {
  return v === null ? "–" : v.toFixed(Math.abs(v) >= 100 ? 1 : 2).replace("-", "−");
}

let drawnMs = 0, describedMs = 0;
function animate(ms) {
  requestAnimationFrame(animate);
  if (ms - drawnMs < 30) return; // limits drawing to 30 Hz, which saves a phone's battery
  page.stage.advance(Math.min(0.2, (ms - drawnMs) / 1000));
  drawnMs = ms;
  page.rig.draw();
  page.trace.draw();
  page.coverage.view.draw();
  const now = page.stage.now();
  if (!now) return;
  showReadouts(now);
  $("hold").disabled = false;
  if ($("rig-note").textContent !== now.label) $("rig-note").textContent = now.label;
  if (ms - describedMs > 1000) { // for screen readers
    describedMs = ms;
    page.rig.describe(`${page.about.rig}: ${page.about.observations.map((o, i) => `${o.name} ${fixed(now.observation[i])} ${o.unit}`).join(", ")}`);
  }
}

/** Shows a text, with code between backticks. */
function notice(text) {
  $("notice").replaceChildren(...text.split("`").map((part, i) => (i % 2 ? Object.assign(document.createElement("code"), { textContent: part }) : part)));
  $("notice").hidden = false;
}

function showConnection(up) {
  if (up && $("notice").dataset.connection) {
    $("notice").hidden = true;
    delete $("notice").dataset.connection;
  }
  if (!up) {
    notice("No connection to this page's server; retrying. The rig keeps running: `onrig stop` in a terminal stops it.");
    $("notice").dataset.connection = "down";
  }
}
