// The motion of the rig as time goes by: live and a little behind, or an episode that is played back.

const BEHIND_S = 0.15;
const KEPT_S = 12;
const FIELDS = ["t", "rule", "reward", "amplitude", "margin"];
const COLUMNS = ["observation", "policy", "applied"];

export class Stage {
  /** `wraps`: for each observation whether it is an angle that goes round. */
  constructor(wraps) {
    this.wraps = wraps;
    this.samples = null;
    this.clip = false;
    this.head = 0;
    this.label = "";
  }

  /** More samples of a live rig. */
  extend(more) {
    const s = this.samples;
    if (this.clip || !s || more.t[0] < s.t[s.t.length - 1] - 0.001) {
      const older = s && !this.clip && s.t[s.t.length - 1] > more.t[more.t.length - 1];
      if (older) return;
      this.samples = more;
      this.head = more.t[more.t.length - 1] - BEHIND_S;
    } else {
      for (const f of FIELDS) s[f].push(...more[f]);
      for (const c of COLUMNS) s[c].forEach((column, i) => column.push(...more[c][i]));
      const drop = s.t.findIndex((t) => t >= s.t[s.t.length - 1] - KEPT_S);
      if (drop > 200) {
        for (const f of FIELDS) s[f].splice(0, drop);
        for (const c of COLUMNS) s[c].forEach((column) => column.splice(0, drop));
      }
    }
    this.clip = false;
  }

  /** A whole episode to play. */
  play(clip) {
    this.samples = clip;
    this.clip = true;
    this.head = 0;
  }

  advance(dt) {
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

  /** What is to be seen now: observations in between samples, the rest as of the last one. */
  now() {
    const s = this.samples;
    if (!s || !s.t.length) return null;
    const i = this.indexAt(this.head), j = Math.min(i + 1, s.t.length - 1);
    const gap = s.t[j] - s.t[i];
    const share = gap > 0 && gap < 0.5 ? Math.min(1, Math.max(0, (this.head - s.t[i]) / gap)) : 0;
    const observation = s.observation.map((column, k) => {
      let step = column[j] - column[i];
      if (this.wraps[k]) step -= 2 * Math.PI * Math.round(step / (2 * Math.PI));
      return column[i] + share * step;
    });
    const pick = (name) => s[name].map((column) => column[i]);
    return { index: i, t: this.head, observation, policy: pick("policy"), applied: pick("applied"),
      rule: s.rule[i], reward: s.reward[i], amplitude: s.amplitude[i], margin: s.margin[i] };
  }
}
