// What the page knows: frames applied one after another. Bounded, and without a look at the document.
//
// A frame with `since` 0 says everything and starts anew. Other frames add their samples to what is known, and replace
// all figures. Things remember when they came (`born`) and fell (`fell`), in milliseconds of the page's clock, for the
// drawing; what is old when it comes was born long ago.

import { NANOS } from "/page/words.js";

const EVENTS = 1500;
const LISTED = 60;
const MINUTE = 60;
const LONG_AGO = -1e9;

// Whole numbers that fall into this century when counted from 1970 are told as dates.
const CENTURY = [Date.UTC(2000) * 1e6, Date.UTC(2100) * 1e6];
const isDate = (clock, unit) => clock !== null && clock * NANOS[unit] >= CENTURY[0] && clock * NANOS[unit] < CENTURY[1];

export class Model {
  constructor() {
    this.reset();
  }

  reset() {
    this.frame = null;
    this.events = [];
    this.byId = new Map(); // newest events by id
    this.lanes = [];
    this.backs = []; // taken back, newest first
    this.lates = [];
    this.deads = [];
    this.history = []; // one [events, matches, taken back] per second
    this.second = null;
    this.came = this.drawn = 0; // events, lately
    this.texts = [];
    this.example = null;
  }

  // `now`: milliseconds of the page's clock; `beat`: over how many of them the arrivals of this frame are spread.
  apply(frame, now, beat = 250) {
    const whole = frame.since === 0;
    const before = whole ? null : this.frame;
    if (whole) {
      this.reset();
      this.history = frame.history ?? [];
      this.texts = frame.queries.map((query) => query.text);
      this.example = frame.example;
    }
    frame.timestamps ||= isDate(frame.clock, frame.unit);
    this.frame = frame;
    this.addEvents(frame, now, whole ? 0 : beat, whole);
    if (before) this.countShown(before, frame);
    frame.queries.forEach((query, i) => this.updateLane(i, query, now, whole));
    this.lanes.length = frame.queries.length;
    this.backs.sort((a, b) => b.match.n - a.match.n || b.match.seq - a.match.seq);
    this.backs.length = Math.min(this.backs.length, LISTED);
    for (const row of frame.late) {
      this.lates.unshift(row);
      const event = row.id == null ? null : this.byId.get(String(row.id));
      if (event) event.broke = row.reason;
    }
    this.deads.unshift(...[...frame.dead].reverse());
    this.lates.length = Math.min(this.lates.length, LISTED);
    this.deads.length = Math.min(this.deads.length, LISTED);
    this.remember(frame);
  }

  // Which share of the events is drawn.
  get share() {
    return this.came > 0 ? Math.min(this.drawn / this.came, 1) : 1;
  }

  addEvents(frame, now, beat, whole) {
    frame.events.forEach(([ts, late, type, source, id], i) => {
      const born = whole ? LONG_AGO : now + (beat * i) / frame.events.length;
      const event = { ts, late, type, source, id, born, broke: null };
      this.events.push(event);
      if (id != null) this.byId.set(id, event);
    });
    if (this.events.length > EVENTS) {
      for (const event of this.events.splice(0, this.events.length - EVENTS)) {
        if (this.byId.get(event.id) === event) this.byId.delete(event.id);
      }
    }
  }

  countShown(before, frame) {
    this.came = 0.8 * this.came + frame.totals.events - before.totals.events;
    this.drawn = 0.8 * this.drawn + frame.events.length;
  }

  updateLane(i, query, now, whole) {
    const lane = (this.lanes[i] ??= { matches: new Map(), query: null });
    lane.query = query;
    for (const match of query.matches) {
      const known = lane.matches.get(match.id);
      const key = match.events.join("\u0000");
      const fell = match.back ? (whole ? LONG_AGO : now) : null;
      const born = whole || (match.back && !known) ? LONG_AGO : known && match.back ? known.born : now;
      lane.matches.delete(match.id); // the order is that of the last change
      lane.matches.set(match.id, { ...match, key, born, fell });
      if (match.back) this.backs.push({ match: lane.matches.get(match.id), lane: i });
    }
    for (const [id, back, seq] of query.rest) {
      const known = lane.matches.get(id);
      if (!known) continue;
      known.seq = seq;
      known.fell = back ? (known.fell ?? now) : null;
    }
    for (const [id, match] of lane.matches) if (match.seq < query.oldest) lane.matches.delete(id);
  }

  // One sample of the rates per second of the service.
  remember(frame) {
    const second = Math.floor(frame.now);
    if (this.second !== null && second > this.second) this.history.push(frame.rates);
    this.second = second;
    if (this.history.length > MINUTE) this.history.splice(0, this.history.length - MINUTE);
  }
}
