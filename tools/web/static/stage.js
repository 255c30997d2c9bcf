// The motion of the rig over time: live with a short delay, or an episode played back.
//
// Picture, numbers, curves and mark all show the moment that `advance` selected, hence the same record; samples that
// arrive in between wait for the next `advance`.

const BEHIND_S = 0.15;
const KEPT_S = 12;
const WAITING = 60;
const FIELDS = ["t", "rule", "begins", "reward", "amplitude", "margin"];
const COLUMNS = ["observation", "input", "policy", "applied"]; // input: where it is not the observation

export class Stage {
  constructor() {
    this.samples = null;
    this.clip = false;
    this.head = 0;
    this.moment = null;
    this.waiting = [];
  }

  /** Appends samples of a live rig. */
  extend(more) {
    this.waiting.push(() => this.append(more));
    if (this.waiting.length > WAITING) this.advance(0); // a page in the background is not drawn, and must not grow
  }

  /** Plays a whole episode. */
  play(clip) {
    this.waiting = [() => this.begin(clip)];
  }

  append(more) {
    const s = this.samples;
    if (this.clip || !s || more.t[0] < s.t[s.t.length - 1] - 0.001) {
      const older = s && !this.clip && s.t[s.t.length - 1] > more.t[more.t.length - 1];
      if (older) return;
      this.samples = more;
      this.head = more.t[more.t.length - 1] - BEHIND_S;
    } else {
      for (const f of FIELDS) s[f].push(...more[f]);
      const columns = COLUMNS.filter((c) => s[c]);
      for (const c of columns) s[c].forEach((column, i) => column.push(...more[c][i]));
      const drop = s.t.findIndex((t) => t >= s.t[s.t.length - 1] - KEPT_S);
      if (drop > 200) {
        for (const f of FIELDS) s[f].splice(0, drop);
        for (const c of columns) s[c].forEach((column) => column.splice(0, drop));
      }
    }
    this.clip = false;
  }

  begin(clip) {
    this.samples = clip;
    this.clip = true;
    this.head = 0;
  }

  /** Takes the new samples, lets `dt` seconds pass and selects the moment to show. */
  advance(dt) {
    this.move(dt);
    for (const take of this.waiting) take();
    this.waiting = [];
    this.moment = this.choose();
  }

  move(dt) {
    const s = this.samples;
    if (!s) return;
    const last = s.t[s.t.length - 1];
    if (this.clip) {
      this.head = Math.min(last, this.head + dt);
      return;
    }
    const error = last - BEHIND_S - this.head;
    this.head = Math.abs(error) > 1 ? last - BEHIND_S : this.head + dt * (1 + Math.max(-0.9, Math.min(1, 3 * error)));
    if (this.head > last) this.head = last;
  }

  /** Index of the last sample that is not after `t`. */
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
    return this.moment;
  }

  choose() {
    const s = this.samples;
    if (!s || !s.t.length) return null;
    const i = this.indexAt(this.head);
    const pick = (name) => s[name].map((column) => column[i]);
    return { index: i, t: s.t[i], observation: pick("observation"), policy: pick("policy"), applied: pick("applied"),
      rule: s.rule[i], reward: s.reward[i], amplitude: s.amplitude[i], margin: s.margin[i],
      label: this.clip ? `${s.kind} episode ${s.episode}, played at real speed` : "" };
  }
}
