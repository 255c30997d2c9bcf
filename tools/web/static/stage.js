// Motion of the rig over time: live with a short delay, or an episode played back; both can be paused.
//
// Drawing, numbers, curves and mark all show the record that `advance` selected; samples that arrive in between are
// queued for the next `advance`.

const DELAY_S = 0.15;
const KEPT_S = 12;
const MAX_QUEUED = 60;
const LOOP_PAUSE_S = 1.5;
const FIELDS = ["t", "rule", "begins", "reward", "amplitude", "margin"];
const COLUMNS = ["observation", "input", "image", "policy", "applied"]; // input: only if it differs from the observation

export class Stage {
  constructor() {
    this.live = { samples: null, clip: false, head: 0 };
    this.held = null;
    this.loops = false; // whether an episode is played repeatedly
    this.selected = null;
    this.queue = [];
  }

  /** The held motion, or the live one. */
  get shown() {
    return this.held ?? this.live;
  }

  get samples() {
    return this.shown.samples;
  }

  /** Appends samples of a live rig. */
  extend(more) {
    this.queue.push(() => this.append(more));
    if (this.queue.length > MAX_QUEUED) this.advance(0); // a page in the background is not drawn; bound its queue
  }

  /** Plays a complete episode. */
  play(clip) {
    this.queue = [() => { this.live = { samples: clip, clip: true, head: 0 }; }];
  }

  /** Pauses the display; samples that arrive are kept. */
  hold() {
    const { samples, clip, head } = this.live;
    if (this.held || !samples) return;
    this.held = { samples: clip ? samples : copy(samples), clip, head, end: clip ? samples.t[samples.t.length - 1] : head };
  }

  /** Moves the held display to time `t`. */
  seek(t) {
    if (this.held) this.held.head = Math.min(this.held.end, Math.max(this.held.samples.t[0], t));
  }

  /** Resumes: an episode where it was held, a live rig at the current time. */
  release() {
    this.held = null;
  }

  append(more) {
    const { samples: s, clip } = this.live;
    if (clip || !s || more.t[0] < s.t[s.t.length - 1] - 0.001) {
      const older = s && !clip && s.t[s.t.length - 1] > more.t[more.t.length - 1];
      if (older) return;
      this.live = { samples: more, clip: false, head: more.t[more.t.length - 1] - DELAY_S };
      return;
    }
    for (const f of FIELDS) s[f].push(...more[f]);
    const columns = COLUMNS.filter((c) => s[c]);
    for (const c of columns) s[c].forEach((column, i) => column.push(...more[c][i]));
    const drop = s.t.findIndex((t) => t >= s.t[s.t.length - 1] - KEPT_S);
    if (drop > 200) {
      for (const f of FIELDS) s[f].splice(0, drop);
      for (const c of columns) s[c].forEach((column) => column.splice(0, drop));
    }
  }

  /** Advances by `dt` seconds, applies queued samples and selects the record to show. */
  advance(dt) {
    this.move(dt);
    for (const apply of this.queue) apply();
    this.queue = [];
    this.selected = this.select();
  }

  move(dt) {
    const { live } = this, s = live.samples;
    if (!s) return;
    const last = s.t[s.t.length - 1];
    if (live.clip) {
      if (this.held) return;
      live.head = Math.min(last + (this.loops ? LOOP_PAUSE_S : 0), live.head + dt);
      if (this.loops && live.head >= last + LOOP_PAUSE_S) live.head = 0;
      return;
    }
    const error = last - DELAY_S - live.head;
    live.head = Math.abs(error) > 1 ? last - DELAY_S : live.head + dt * (1 + Math.max(-0.9, Math.min(1, 3 * error)));
    if (live.head > last) live.head = last;
  }

  /** Index of the last sample at or before `t`. */
  indexAt(t) {
    const times = this.samples.t;
    let low = 0, high = times.length - 1;
    while (low < high) {
      const mid = (low + high + 1) >> 1;
      if (times[mid] <= t) low = mid;
      else high = mid - 1;
    }
    return low;
  }

  /** The record to show, as selected by `advance`; null before any motion. */
  now() {
    return this.selected;
  }

  select() {
    const { samples: s, clip, head } = this.shown;
    if (!s || !s.t.length) return null;
    const i = this.indexAt(head);
    const pick = (name) => s[name].map((column) => column[i]);
    return { index: i, t: s.t[i], observation: pick("observation"), policy: pick("policy"), applied: pick("applied"),
      image: s.image && pick("image"),
      rule: s.rule[i], reward: s.reward[i], amplitude: s.amplitude[i], margin: s.margin[i],
      label: clip ? `${s.kind} episode ${s.episode}, played at real speed` : "" };
  }
}

function copy(samples) {
  const columns = COLUMNS.filter((c) => samples[c]).map((c) => [c, samples[c].map((column) => [...column])]);
  return Object.fromEntries([...FIELDS.map((f) => [f, [...samples[f]]]), ...columns]);
}
