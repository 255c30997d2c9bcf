// The page: receives the server's messages and passes them to the modules that draw.

import { Picture, sayEmpty } from "./theme.js";
import { short, written } from "./plot.js";
import { follow } from "./stream.js";
import { disableStops, tellActuators, wireStops } from "./stop.js";
import { Stage } from "./stage.js";
import { drawRig } from "./drawing.js";
import { Trace } from "./trace.js";
import { Coverage } from "./coverage.js";
import { Learning } from "./learning.js";
import { Timing, duration } from "./timing.js";
import { Lists } from "./lists.js";

const KINDS = ["about", "status", "episodes", "story", "figures", "memory", "motion", "clip", "ended"];
const GOOD = ["running", "resetting", "ready"], BAD = ["fault"];
const $ = (id) => document.getElementById(id);
const page = { seen: new Set() };

$("hold").addEventListener("click", () => hold(!page.stage.held));
if (location.search) history.replaceState(null, "", location.pathname); // the cookie has the token now
wireStops(notice);
follow(KINDS, (kind, data) => {
  handle[kind](data);
  page.seen.add(kind);
  document.documentElement.dataset.seen = [...page.seen].sort().join(" ");
}, line);

const handle = {
  about(about) {
    if (page.about) { // again, after an outage or by a run that was resumed, perhaps for more episodes
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
    tellPromise();
    page.stage = new Stage();
    page.rig = new Picture("rig", paintRig);
    page.trace = new Trace(about, page.stage, { held: hold });
    page.coverage = new Coverage(about, page.stage);
    page.learning = new Learning(about);
    page.timing = new Timing(about);
    page.lists = new Lists(about);
    readouts(about);
    requestAnimationFrame(animate);
  },
  status(status) {
    page.status = status;
    tellState();
    tellActuators(status.actuators, notice);
    if (status.phase === "running") {
      progress(status.episode);
      if (status.policy) page.coverage.usePolicy(status.policy);
    }
    if (status.phase === "ended") disableStops();
  },
  episodes(episodes) {
    page.learning.take(episodes);
    page.lists.takeEpisodes(page.learning.rows, page.learning.at, page.learning.merged);
    const last = page.learning.rows.at(-1);
    if (last && page.status?.phase !== "running") {
      progress(last[page.learning.at.episode]);
      page.coverage.usePolicy(last[page.learning.at.policy]);
    }
  },
  story(story) { page.lists.take(story); },
  figures(figures) {
    page.timing.take(figures);
    tellFacts(figures.words);
  },
  memory(memory) { page.coverage.take(memory); },
  motion(samples) { page.stage.extend(samples); },
  clip(clip) { page.stage.play(clip); },
  ended(ended) {
    disableStops();
    page.over = page.coverage.ended = true;
    page.stage.again = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    page.timing.takeSummary(ended.summary, ended.histograms);
    tellFacts(ended.words);
    const why = ended.words.ended, { actuators } = ended.words;
    notice(`The run has ended${why ? `: ${why}` : ""}.${actuators ? ` Actuators ${actuators}.` : ""} This is its final state.`);
  },
};

/** One word for the state.  Whether the shield acts is said once, by the readout of the record that is shown. */
function tellState() {
  const { status } = page, now = page.stage.now();
  const state = status.state === "fallback" && now ? "running" : status.state;
  const text = status.phase === "running" ? (status.stopping ? "stopping" : state) : status.phase;
  const level = status.stopping ? "warn" : GOOD.includes(text) ? "good" : BAD.includes(text) ? "bad" : status.phase === "running" ? "warn" : "";
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = `pill ${level}`;
}

/** Holds the motion, or lets it go on. */
function hold(still) {
  if (still) page.stage.hold();
  else page.stage.release();
  const held = page.stage.held !== null;
  if (!held) page.trace?.span.show(null);
  $("hold").textContent = held ? "go on" : "pause";
  $("hold").setAttribute("aria-pressed", held);
}

/** The run's facts, in the words that the terminal and the report have, too. */
function tellFacts(words) {
  const say = (id, text) => { if (text) $(id).textContent = text; };
  const lost = words["records lost"];
  say("learning-note", words.performance && `${words.performance} (mean of 20)`);
  say("missed", words.ticks && `${words.ticks}; period ${duration(page.about.period_us)}`);
  say("policies-note", words.policies);
  say("safety-note", words.shield && `the shield ${words.shield}; it keeps ${page.about.kept}`);
  tellPromise(words.promise);
  say("foot", [words.learner, words.memory, lost && `${lost} records lost`].filter(Boolean).join(" · "));
  page.learning.describe(words.performance);
  page.timing.describe(words);
}

/** What the limits rest on, in one word, with a sentence that says what it means. */
function tellPromise(withdrawn) {
  const { word, sentence } = page.about.promise, pill = $("promise");
  pill.textContent = withdrawn ? `${word}: ${withdrawn}` : word;
  $("promise-means").textContent = `the promise, ${word}: ${sentence}`;
  $("promise-means").hidden = false;
  pill.className = `pill ${withdrawn ? "bad" : word === "none" ? "warn" : ""}`;
  pill.hidden = false;
}

function progress(episode) {
  const { episodes } = page.about;
  $("count").textContent = `${episode} / ${episodes}`;
  $("done").style.width = `${Math.min(100, (100 * episode) / episodes)}%`;
  $("progress").setAttribute("aria-valuemax", episodes);
  $("progress").setAttribute("aria-valuenow", episode);
}

function paintRig(ctx, width, height) {
  const now = page.stage.now();
  drawRig(ctx, width, height, page.about, now, page.stage.samples);
  if (!now) sayEmpty(ctx, width, height - 20, page.over ? "no motion: the run has no log that can be read" : "no motion yet");
}

function readouts(about) {
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
    const unit = field.unit ? written(field).unit : "", scale = unit === "mm" && field.unit === "m" ? 1000 : 1;
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

let before = 0, told = 0;
function animate(ms) {
  requestAnimationFrame(animate);
  if (ms - before < 30) return; // thirty frames a second are enough, and save a phone's battery
  page.stage.advance(Math.min(0.2, (ms - before) / 1000));
  before = ms;
  page.rig.draw();
  page.trace.draw();
  page.coverage.picture.draw();
  const now = page.stage.now();
  if (!now) return;
  showReadouts(now);
  $("hold").disabled = false;
  if ($("rig-note").textContent !== now.label) $("rig-note").textContent = now.label;
  if (ms - told > 1000) { // for screen readers
    told = ms;
    page.rig.describe(`${page.about.rig}: ${page.about.observations.map((o, i) => `${o.name} ${fixed(now.observation[i])} ${o.unit}`).join(", ")}`);
  }
}

/** Shows a text; between backticks is code. */
function notice(text) {
  $("notice").replaceChildren(...text.split("`").map((part, i) => (i % 2 ? Object.assign(document.createElement("code"), { textContent: part }) : part)));
  $("notice").hidden = false;
}

function line(up) {
  if (up && $("notice").dataset.line) {
    $("notice").hidden = true;
    delete $("notice").dataset.line;
  }
  if (!up) {
    notice("No connection to this page's server; retrying. The rig keeps running: `onrig stop` in a terminal stops it.");
    $("notice").dataset.line = "down";
  }
}
