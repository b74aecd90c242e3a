// The timeline: one canvas for arrivals and one for each query, over one axis of event time.
//
// Everything is drawn from the model and the clock of the page alone; nothing is remembered but what eases: the clock
// that is shown, the height of the lateness scale, each lane's lag. `draw` says whether anything still moves.

import { atLeast, length, midnight, moment, steps } from "/page/words.js";

const FLIGHT = 750; // how long an event flies from the clock to its place
const TRAIL = 2200; // and how long its way stays visible
const GROW = 450; // how long a match takes to appear
const FALL = 600; // and to be struck out
const AXIS = 20; // pixels of the axis
const TOP = 26; // and of the flag of the clock
const FOOT = 13; // below the base line of a lane
const PAD = 0.045; // of the span, right of the clock
const FONT = '11px Inter, system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const easeOut = (p) => 1 - (1 - p) ** 3;
const progress = (now, start, lasting, still) => (still ? 1 : clamp((now - start) / lasting, 0, 1));

// A number in -1..1 that is always the same for the same event.
function scatter(event) {
  const text = `${event.id}${event.ts}`;
  let hash = 7;
  for (let i = 0; i < text.length; i++) hash = (hash * 31 + text.charCodeAt(i)) | 0;
  return ((hash >>> 3) % 1000) / 500 - 1;
}

export class Scene {
  constructor(model, arrivals) {
    this.model = model;
    this.arrivals = new Surface(arrivals);
    this.lanes = [];
    this.clock = null; // as shown
    this.deepest = null; // the largest lateness on the scale
    this.span = null; // units; null: as it fits the queries
    this.marked = null; // key of the match that is pointed at
    this.still = false; // reduced motion
    this.last = 0;
    this.colours();
  }

  // After the theme has changed.
  colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    const names = ["ink", "soft", "faint", "line", "hair", "card", "match", "back", "wait", "unknown", "past", "paper"];
    this.colour = Object.fromEntries(names.map((name) => [name, of(name)]));
    this.types = [0, 1, 2, 3, 4, 5].map((i) => of(`type-${i}`));
    this.colour.other = of("type-x");
  }

  typeColour(i) {
    return this.types[i] ?? this.colour.other;
  }

  setLanes(canvases) {
    this.lanes = canvases.map((canvas) => ({ surface: new Surface(canvas), lag: null, hits: [] }));
  }

  // The length of time shown: a few windows, and whatever a level waits.
  fitting() {
    const unit = this.model.frame?.unit;
    const queries = this.model.lanes.map((lane) => lane.query);
    const wanted = queries.map((q) => Math.max(4 * (q.window ?? 0), 2 * (q.window ?? 0) + Math.max(q.k ?? 0, q.patience ?? 0)));
    return atLeast(unit, Math.max(...wanted, 1));
  }

  get shownSpan() {
    return this.span ?? this.fitting();
  }

  zoom(direction) {
    const all = steps(this.model.frame?.unit);
    const at = all.findIndex((step) => step >= this.shownSpan);
    this.span = all[clamp((at < 0 ? all.length - 1 : at) + direction, 0, all.length - 1)];
    this.deepest = null;
  }

  draw(now) {
    const { frame } = this.model;
    if (!frame || frame.clock === null) {
      for (const surface of [this.arrivals, ...this.lanes.map((lane) => lane.surface)]) surface.clear();
      return false;
    }
    const pass = Math.min(now - this.last, 100);
    this.last = now;
    const ease = this.still ? 1 : 1 - Math.exp(-pass / 260);
    const away = frame.clock - (this.clock ?? frame.clock);
    // Far jumps are no movement: a night was left out, or the page has just been opened.
    this.clock = this.clock === null || Math.abs(away) > this.shownSpan / 2 ? frame.clock : this.clock + away * ease;
    let moves = Math.abs(frame.clock - this.clock) > this.shownSpan / 5000;
    const span = this.shownSpan;
    this.left = this.clock - span * (1 - PAD);
    moves = this.drawArrivals(now, ease) || moves;
    this.lanes.forEach((shown, i) => {
      const lane = this.model.lanes[i];
      if (lane) moves = this.drawLane(shown, lane, now, ease) || moves;
    });
    return moves;
  }

  x(surface, time) {
    return ((time - this.left) / this.shownSpan) * surface.width;
  }

  // Round times on the axis, with room for their words.
  ticks(surface) {
    const { unit, timestamps } = this.model.frame;
    const room = Math.max(90, moment(this.clock, unit, timestamps, this.shownSpan / 10).length * 7 + 24);
    const step = atLeast(unit, (this.shownSpan * room) / surface.width);
    const ticks = [];
    for (let t = Math.ceil(this.left / step) * step; t < this.left + this.shownSpan; t += step) {
      const label = midnight(t, unit, timestamps) ?? moment(t, unit, timestamps, step);
      ticks.push({ x: this.x(surface, t), label });
    }
    return ticks;
  }

  grid(surface, ctx, bottom) {
    ctx.strokeStyle = this.colour.hair;
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (const { x } of this.ticks(surface)) {
      ctx.moveTo(Math.round(x) + 0.5, 0);
      ctx.lineTo(Math.round(x) + 0.5, bottom);
    }
    ctx.stroke();
  }

  // --- arrivals ---------------------------------------------------------------------------------------------------

  drawArrivals(now, ease) {
    const surface = this.arrivals;
    const ctx = surface.begin();
    const { width, height } = surface;
    const { unit, timestamps } = this.model.frame;
    const floor = height - AXIS - 8;
    const visible = this.model.events.filter((e) => e.ts >= this.left && e.born <= now);
    const wanted = Math.max(...visible.map((e) => e.late), this.shownSpan / 10);
    this.deepest = this.deepest === null || this.still ? wanted : this.deepest + (wanted - this.deepest) * ease * 0.5;
    const y = (late) => TOP + Math.sqrt(Math.min(late / this.deepest, 1)) * (floor - TOP);
    this.grid(surface, ctx, height - AXIS);

    // The scale of lateness.
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    const marks = [0.05, 0.28, 0.75].map((part) => atLeast(unit, this.deepest * part)).filter((t) => t <= this.deepest);
    const scale = [...new Set([0, ...marks])].map((late) => [late, Math.round(y(late)) + 0.5]);
    for (const [late, at] of scale) {
      ctx.strokeStyle = late ? this.colour.hair : this.colour.line;
      line(ctx, 0, at, width, at);
    }
    ctx.textAlign = "center";
    ctx.fillStyle = this.colour.soft;
    for (const { x, label } of this.ticks(surface)) {
      const half = ctx.measureText(label).width / 2;
      if (x - half > 2 && x + half < width - 2) ctx.fillText(label, x, height - AXIS / 2 + 1);
    }

    let moves = Math.abs(wanted - this.deepest) > wanted / 500;
    const radius = width < 500 ? 2.4 : 3;
    surface.hits = [];
    const trails = [];
    const dots = [];
    for (const event of visible) {
      const flown = progress(now, event.born, FLIGHT, this.still);
      const p = easeOut(flown);
      const there = y(event.late) + scatter(event) * (event.late ? 3 : 6);
      const from = this.x(surface, event.ts + event.late);
      const to = this.x(surface, event.ts);
      const at = { x: from + (to - from) * p, y: TOP + (there - TOP) * p };
      const trail = 1 - progress(now, event.born + FLIGHT, TRAIL, this.still);
      if (event.late && trail > 0) trails.push({ event, from, at, trail });
      dots.push({ event, at, flown });
      moves ||= flown < 1 || (event.late > 0 && trail > 0);
      surface.hits.push({ x: at.x, y: at.y, event });
    }
    for (const { event, from, at, trail } of trails) {
      ctx.globalAlpha = 0.55 * trail;
      ctx.strokeStyle = this.typeColour(event.type);
      ctx.lineWidth = 1.25;
      line(ctx, from, TOP, at.x, at.y);
    }
    for (const { event, at, flown } of dots) {
      ctx.globalAlpha = 0.88;
      ctx.fillStyle = this.typeColour(event.type);
      disc(ctx, at.x, at.y, radius * (event.late ? 1 : 0.4 + 0.6 * flown));
      if (event.broke) {
        ctx.globalAlpha = 1;
        ctx.strokeStyle = this.colour.back;
        ctx.lineWidth = 1.5;
        ring(ctx, at.x, at.y, radius + 3);
      }
    }
    ctx.textAlign = "left";
    for (const [late, at] of scale) plate(ctx, late ? `${length(late, unit)} late` : "on time", 6, at, this.colour);
    const clock = this.x(surface, this.clock);
    ctx.strokeStyle = this.colour.ink;
    ctx.lineWidth = 1.5;
    line(ctx, clock, 10, clock, height - AXIS);
    ctx.font = `600 ${FONT}`;
    flag(ctx, moment(this.clock, unit, timestamps, Math.max(this.shownSpan / 400, 1)), clock, 10, width, this.colour);
    return moves;
  }

  // --- a query ----------------------------------------------------------------------------------------------------

  drawLane(shown, lane, now, ease) {
    const { surface } = shown;
    const ctx = surface.begin();
    const { width, height } = surface;
    const { query } = lane;
    const base = height - FOOT;
    this.grid(surface, ctx, height);
    const clock = this.x(surface, this.clock);
    const moves = this.drawKnowledge(shown, query, ctx, clock, ease);

    ctx.strokeStyle = this.colour.line;
    ctx.lineWidth = 1;
    line(ctx, 0, base + 0.5, width, base + 0.5);
    this.drawEvents(surface, ctx, query, base, now);
    const arcs = this.arcs(surface, lane, base, now);
    shown.hits = arcs;
    for (const arc of arcs) this.drawArc(ctx, arc, base, now);
    for (const waiting of query.waiting) this.drawWaiting(surface, ctx, query, waiting, base);
    ctx.strokeStyle = this.colour.ink;
    ctx.lineWidth = 1.5;
    line(ctx, clock, 0, clock, height);
    return moves || arcs.some((arc) => arc.moves);
  }

  // What is not known yet, and what is forgotten.
  drawKnowledge(shown, query, ctx, clock, ease) {
    const { surface } = shown;
    const { width, height } = surface;
    const waits = query.kind === "kslack" || query.negated.length > 0;
    const lag = query.lag ?? (waits && query.held !== undefined ? Infinity : 0);
    const jump = shown.lag === null || !Number.isFinite(lag) || !Number.isFinite(shown.lag) || this.still;
    shown.lag = jump ? lag : shown.lag + (lag - shown.lag) * ease;
    const horizon = Number.isFinite(shown.lag) ? this.x(surface, this.clock - shown.lag) : -10;
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    if (waits && clock - horizon > 1.5) {
      ctx.globalAlpha = 0.13;
      ctx.fillStyle = this.colour.unknown;
      ctx.fillRect(horizon, 0, clock - horizon, height);
      ctx.globalAlpha = 1;
      ctx.strokeStyle = this.colour.wait;
      ctx.setLineDash([4, 3]);
      ctx.lineWidth = 1.25;
      line(ctx, horizon, 0, horizon, height);
      ctx.setLineDash([]);
      const text = Number.isFinite(lag) ? `not yet known: ${length(Math.round(shown.lag), this.model.frame.unit)}` : "nothing is proven yet";
      const left = Math.max(horizon, 0);
      if (clock - left > ctx.measureText(text).width + 12) {
        ctx.textAlign = "center";
        ctx.fillStyle = this.colour.wait;
        ctx.fillText(text, (left + clock) / 2, 10);
      }
    }
    if (query.retention != null) {
      const floor = this.x(surface, this.clock - query.retention);
      if (floor > 0) {
        ctx.globalAlpha = 0.1;
        ctx.fillStyle = this.colour.past;
        ctx.fillRect(0, 0, floor, height);
        ctx.globalAlpha = 1;
        ctx.strokeStyle = this.colour.past;
        ctx.setLineDash([1.5, 3]);
        line(ctx, floor, 0, floor, height);
        ctx.setLineDash([]);
        if (floor > 70) {
          ctx.textAlign = "right";
          ctx.fillStyle = this.colour.faint;
          ctx.fillText("forgotten", floor - 6, 10);
        }
      }
    }
    return Number.isFinite(lag) && Math.abs(lag - shown.lag) > this.shownSpan / 2000;
  }

  drawEvents(surface, ctx, query, base, now) {
    const wanted = new Set(query.types);
    const names = this.model.frame.types.map(([name]) => name);
    ctx.lineWidth = 1.5;
    for (const event of this.model.events) {
      const landed = this.still || now >= event.born + (event.late ? FLIGHT * 0.6 : 0);
      if (event.ts < this.left || !landed || !wanted.has(names[event.type])) continue;
      const x = this.x(surface, event.ts);
      ctx.globalAlpha = query.kind === "kslack" && event.ts > this.clock - (query.k ?? 0) ? 0.35 : 0.75;
      ctx.strokeStyle = this.typeColour(event.type);
      line(ctx, x, base + 2, x, base + 7);
    }
    ctx.globalAlpha = 1;
  }

  // Where the matches are, the ghosts first and the one that is pointed at last.
  arcs(surface, lane, base, now) {
    const arcs = [];
    const high = base - 24;
    const window = lane.query.window || this.shownSpan / 4;
    for (const match of lane.matches.values()) {
      if (match.last < this.left - this.shownSpan * 0.02 || match.born > now) continue;
      const from = this.x(surface, match.first);
      const to = this.x(surface, match.last);
      const tall = 10 + (high - 10) * Math.sqrt(clamp((match.last - match.first) / window, 0, 1));
      const grown = easeOut(progress(now, match.born, GROW, this.still));
      const fallen = match.fell === null ? 0 : progress(now, match.fell, FALL, this.still);
      const moves = grown < 1 || (match.fell !== null && now - match.fell < 3 * FALL && !this.still);
      arcs.push({ match, lane, from, to: Math.max(to, from + 2), tall, grown, fallen, moves, marked: match.key === this.marked });
    }
    const order = (arc) => (arc.marked ? 2 : arc.match.fell === null ? 1 : 0);
    return arcs.sort((a, b) => order(a) - order(b));
  }

  drawArc(ctx, arc, base, now) {
    const { match, lane, from, to, tall, grown, fallen, marked } = arc;
    const middle = (from + to) / 2;
    const gone = match.fell !== null;
    const dimmed = this.marked !== null && !marked;
    const ghost = gone ? 1 - 0.45 * progress(now, match.fell + FALL, 2 * FALL, this.still) : 1;
    ctx.globalAlpha = (dimmed ? 0.22 : 1) * ghost;
    ctx.strokeStyle = gone && fallen > 0.1 ? this.colour.back : this.colour.match;
    ctx.lineWidth = marked ? 3 : gone ? 1.4 : 1.9;
    if (gone) ctx.setLineDash([3, 3]);
    ctx.beginPath();
    ctx.ellipse(middle, base, (to - from) / 2, tall, 0, Math.PI, Math.PI * (1 + grown));
    ctx.stroke();
    ctx.setLineDash([]);
    const positives = lane.query.positives;
    const names = this.model.frame.types.map(([name]) => name);
    match.times.forEach((time, i) => {
      const x = this.x(this.lanes[0].surface, time ?? (i === 0 ? match.first : match.last));
      if (time === null && i > 0 && i < match.times.length - 1) return;
      ctx.fillStyle = this.typeColour(names.indexOf(positives[i]));
      disc(ctx, x, base, marked ? 4 : 3);
    });
    if (gone) {
      const p = easeOut(fallen);
      ctx.lineWidth = 2.2;
      const reach = clamp((to - from) / 2 + 3, 7, 11);
      line(ctx, middle - reach, base - tall + 6, middle - reach + 2 * reach * p, base - tall + 6 - 12 * p);
      const by = match.back?.by;
      if (by) {
        const x = this.x(this.lanes[0].surface, by.ts);
        const across = clamp((x - middle) / ((to - from) / 2), -1, 1);
        ctx.lineWidth = 1.2;
        line(ctx, x, base, x, base - tall * Math.sqrt(1 - across ** 2));
        ctx.fillStyle = this.colour.back;
        disc(ctx, x, base, 3.2);
      }
    }
    ctx.globalAlpha = 1;
  }

  drawWaiting(surface, ctx, query, waiting, base) {
    const known = waiting.times.filter((time) => time !== null);
    if (!known.length) return;
    const first = Math.min(...known);
    const last = Math.max(...known, waiting.since);
    const from = this.x(surface, first);
    const to = Math.max(this.x(surface, last), from + 2);
    if (to < 0) return;
    const window = query.window || this.shownSpan / 4;
    const tall = 10 + (base - 34) * Math.sqrt(clamp((last - first) / window, 0, 1));
    ctx.strokeStyle = this.colour.wait;
    ctx.lineWidth = 1.4;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.ellipse((from + to) / 2, base, (to - from) / 2, tall, 0, Math.PI, 2 * Math.PI);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  // --- pointing ---------------------------------------------------------------------------------------------------

  // What is at a place of a canvas: { event } or { match, lane } or null.
  at(canvas, x, y) {
    if (canvas === this.arrivals.canvas) {
      let best = null;
      let nearest = 10 ** 2;
      for (const hit of this.arrivals.hits ?? []) {
        const distance = (hit.x - x) ** 2 + (hit.y - y) ** 2;
        if (distance <= nearest) [best, nearest] = [hit, distance];
      }
      return best && { event: best.event };
    }
    const shown = this.lanes.find((lane) => lane.surface.canvas === canvas);
    if (!shown) return null;
    const base = shown.surface.height - FOOT;
    let best = null;
    let nearest = 8;
    for (const arc of shown.hits) {
      const wide = (arc.to - arc.from) / 2;
      const across = clamp((x - (arc.from + arc.to) / 2) / wide, -1, 1);
      const over = base - arc.tall * Math.sqrt(1 - across ** 2);
      const beside = Math.max(arc.from - x, x - arc.to, 0);
      const distance = Math.hypot(beside, Math.abs(across) > 0.95 ? Math.max(over - y, y - base, 0) : over - y);
      if (distance <= nearest) [best, nearest] = [arc, distance];
    }
    return best && { match: best.match, lane: best.lane };
  }
}

// A canvas in CSS pixels, whatever the screen's own are.
class Surface {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.hits = [];
    this.size();
  }

  size() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth || 1;
    this.height = this.canvas.clientHeight || 1;
    const [width, height] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.ratio = ratio;
  }

  begin() {
    this.size();
    this.clear();
    return this.context;
  }

  clear() {
    this.context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    this.context.globalAlpha = 1;
    this.context.setLineDash([]);
    this.context.clearRect(0, 0, this.width, this.height);
  }
}

// The last minute as a line over a surface.
export function spark(canvas, values, colour) {
  const surface = new Surface(canvas);
  const ctx = surface.begin();
  if (values.length < 2) return;
  // A single burst, such as all that was there before the start, does not press the rest down.
  const most = Math.max([...values].sort((a, b) => a - b)[Math.floor((values.length - 1) * 0.95)], 1e-9);
  ctx.beginPath();
  values.forEach((value, i) => {
    const x = (i / (values.length - 1)) * (surface.width - 2) + 1;
    const y = surface.height - 3 - Math.min(value / most, 1) * (surface.height - 6);
    if (i) ctx.lineTo(x, y);
    else ctx.moveTo(x, y);
  });
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.4;
  ctx.lineJoin = "round";
  ctx.stroke();
  ctx.lineTo(surface.width - 1, surface.height);
  ctx.lineTo(1, surface.height);
  ctx.globalAlpha = 0.1;
  ctx.fillStyle = colour;
  ctx.fill();
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

function disc(ctx, x, y, radius) {
  ctx.beginPath();
  ctx.arc(x, y, radius, 0, 2 * Math.PI);
  ctx.fill();
}

function ring(ctx, x, y, radius) {
  ctx.beginPath();
  ctx.arc(x, y, radius, 0, 2 * Math.PI);
  ctx.stroke();
}

// A word that stays legible over lines.
function plate(ctx, text, x, y, colour) {
  ctx.globalAlpha = 0.8;
  ctx.fillStyle = colour.card;
  ctx.beginPath();
  ctx.roundRect(x - 3, y - 8, ctx.measureText(text).width + 6, 15, 3);
  ctx.fill();
  ctx.globalAlpha = 1;
  ctx.fillStyle = colour.faint;
  ctx.fillText(text, x, y);
}

function flag(ctx, text, x, y, width, colour) {
  const wide = ctx.measureText(text).width + 12;
  const left = clamp(x - wide / 2, 2, width - wide - 2);
  ctx.fillStyle = colour.ink;
  ctx.beginPath();
  ctx.roundRect(left, y - 8, wide, 17, 4);
  ctx.fill();
  ctx.fillStyle = colour.card;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(text, left + wide / 2, y + 1);
}
