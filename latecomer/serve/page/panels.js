// The words around the timeline: figures, the lanes' headings, lists. All text from outside enters by textContent.

import { spark } from "/page/scene.js";
import { bytes, count, length, moment, percent, rate } from "/page/words.js";

const get = (id) => document.getElementById(id);
const LEVELS = {
  kslack: ["KSlack", "waits a fixed time, then is final"],
  conservative: ["Conservative", "waits for proof, then is final"],
  aggressive: ["Aggressive", "answers at once, takes back"],
};

// An element with a class and children, which are elements or text.
export function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children.filter((child) => child !== null));
  return element;
}

function say(target, text) {
  const element = typeof target === "string" ? get(target) : target;
  if (element.textContent !== text) element.textContent = text;
}

// A query's text without its level.
const bodyOf = (text) => text.split("\nCONSISTENCY")[0];

export class Panels {
  constructor(model, scene, mark) {
    this.model = model;
    this.scene = scene;
    this.mark = mark;
    this.heads = [];
    this.seen = {};
  }

  // New lanes: a heading and a canvas for each query. Returns the canvases.
  lanes() {
    for (const row of document.querySelectorAll(".row.lane")) row.remove();
    const { texts } = this.model;
    const alike = new Set(texts.map(bodyOf)).size === 1; // one query at several levels: these are what to tell apart
    this.heads = this.model.frame.queries.map((query) => {
      const [level, rule] = LEVELS[query.kind];
      const title = alike && texts.length > 1 ? level : query.name;
      const known = make("b", "", "0");
      const head = { known, bars: {} };
      const bars = make("div", "bars");
      for (const [key, label, help] of [
        ["wait", "wait", "Time from a match's last event to the answer, half of the matches"],
        ["taken", "taken back", "Share of the answers that were taken back"],
        ["lost", "too late", "Events that broke the level's promise"],
      ]) {
        const fill = make("i");
        const value = make("span", "value", "–");
        head.bars[key] = { fill, value };
        const name = make("span", "", label);
        name.title = help;
        bars.append(name, make("span", `bar ${key}`, fill), value);
      }
      const clause = make("p", "clause", make("code", "", query.level), title === query.name ? null : ` ${query.name}`);
      clause.title = `${query.name}: ${query.level}`;
      const canvas = make("canvas");
      canvas.setAttribute("role", "img");
      const side = make("div", "side", make("h2", "", make("span", "", title), make("span", "known", known, " known")),
        make("p", "says", rule), clause, bars);
      get("rows").append(make("div", "row lane", side, make("div", "plot", canvas)));
      return { ...head, canvas };
    });
    get("queries").replaceChildren(...this.texts());
    return this.heads.map((head) => head.canvas);
  }

  // Each query text once, with the names of those that have it.
  texts() {
    const byText = new Map();
    this.model.texts.forEach((text, i) => {
      const body = bodyOf(text);
      byText.set(body, [...(byText.get(body) ?? []), this.model.frame.queries[i].name]);
    });
    const parts = [];
    for (const [text, names] of byText) parts.push(make("p", "", names.join(", ")), make("pre", "", text));
    if (this.model.frame.more_queries) parts.push(make("p", "none", `and ${count(this.model.frame.more_queries)} more, which are not drawn`));
    return parts;
  }

  update() {
    const { frame, history } = this.model;
    const { totals, rates, unit } = frame;
    document.title = `Latecomer · ${frame.name}`;
    say("name", frame.name);
    say("clock", moment(frame.clock, unit, frame.timestamps, this.step, true));
    say("span", length(this.scene.shownSpan, unit));
    ["events", "matches", "back"].forEach((key, i) => {
      say(`rate-${key}`, rate(rates[i]));
      spark(get(`spark-${key}`), history.map((second) => second[i]), [this.scene.colour.soft, this.scene.colour.match, this.scene.colour.back][i]);
    });
    say("total-events", count(totals.events));
    say("total-matches", count(totals.inserted));
    say("total-back", count(totals.deleted));
    say("behind", totals.events ? percent(totals.behind / totals.events) : "–");
    say("total-late", count(totals.late));
    say("total-dead", count(totals.dead));
    const reasons = Object.entries(frame.reasons).map(([reason, n]) => `${reason} ${count(n)}`);
    say("reasons", reasons.join(", ") || (totals.dead ? "see below" : "nothing"));
    this.updateState(frame.state);
    this.updateTypes(frame);
    frame.queries.forEach((query, i) => this.updateHead(query, this.heads[i], frame));
    this.updateLists();
    get("empty").hidden = totals.rows > 0 || totals.dead > 0;
  }

  updateState(state) {
    say("state-memory", bytes(state.bytes));
    const parts = [];
    if (state.events !== undefined) parts.push(`${count(state.events)} events`);
    if (state.budget) parts.push(`of ${bytes(state.budget)}`);
    const disk = (state.state_bytes_on_disk ?? 0) + (state.journal_bytes ?? 0);
    if (disk) parts.push(`${bytes(disk)} on disk`);
    if (state.inbox_bytes) parts.push(`${bytes(state.inbox_bytes)} wait to be read`);
    if (state.refused) parts.push(`${count(state.refused)} refused`);
    say("state-more", parts.join(", ") || "–");
  }

  updateTypes(frame) {
    const list = get("types");
    const shown = frame.types.filter(([, n], i) => n || i < 6);
    const key = shown.map(([name]) => name).join("\u0000") + (frame.other_types ? "+" : "");
    if (this.seen.types !== key) {
      this.seen.types = key;
      list.replaceChildren(...shown.map(([name]) => {
        const i = frame.types.findIndex((type) => type[0] === name);
        return make("li", "", make("i", `dot t${i}`), make("b", "", name), make("span"));
      }));
      if (frame.other_types) list.append(make("li", "", make("i", "dot"), make("b", "", "others"), make("span")));
    }
    const counts = [...shown.map(([, n]) => n), frame.other_types];
    [...list.children].forEach((item, i) => say(item.lastChild, count(counts[i])));
    const { share } = this.model;
    get("sampled").hidden = share > 0.95;
    say("sampled", `A sample: about ${percent(share)} of the events are drawn. All figures are exact.`);
  }

  updateHead(query, head, frame) {
    const most = (key) => Math.max(...frame.queries.map((q) => q[key] ?? 0), 1e-9);
    const part = (q) => (q.inserted ? q.deleted / q.inserted : 0);
    const set = (key, text, share) => {
      say(head.bars[key].value, text);
      head.bars[key].value.classList.toggle("none", share === 0);
      head.bars[key].fill.style.width = `${Math.round(share * 100)}%`;
    };
    say(head.known, count(query.inserted - query.deleted));
    set("wait", query.wait === null ? "–" : length(query.wait, frame.unit), (query.wait ?? 0) / most("wait"));
    const taken = query.deleted ? `${count(query.deleted)} (${percent(part(query))})` : "0";
    set("taken", taken, part(query) / Math.max(...frame.queries.map(part), 1e-9));
    set("lost", count(query.late), query.late / most("late"));
    const held = query.held ? `, ${count(query.held)} held` : query.buffered ? `, ${count(query.buffered)} events wait to be sorted` : "";
    const text = `${query.name} at ${query.level}: ${count(query.inserted - query.deleted)} matches known${held}, ${count(query.deleted)} taken back, ${count(query.late)} events too late`;
    if (head.canvas.getAttribute("aria-label") !== text) head.canvas.setAttribute("aria-label", text);
  }

  // --- lists ------------------------------------------------------------------------------------------------------

  updateLists() {
    const { frame, backs, lates, deads } = this.model;
    const held = frame.queries.reduce((sum, query) => sum + (query.held ?? 0), 0);
    say("back-count", frame.totals.deleted ? count(frame.totals.deleted) : "");
    say("held-count", held ? count(held) : "");
    say("late-count", frame.totals.late ? count(frame.totals.late) : "");
    say("dead-count", frame.totals.dead ? count(frame.totals.dead) : "");
    say("source-count", frame.sources.length ? count(frame.sources.length + frame.more_sources) : "");
    const helds = frame.queries.flatMap((query) => query.waiting.map((waiting) => ({ query, waiting })));
    this.fill("backs", backs, ({ match, lane }) => `${lane} ${match.id} ${match.n}`, (entry) => this.backItem(entry));
    this.fill("helds", helds, ({ query, waiting }) => [query.name, ...waiting.events, JSON.stringify(waiting.scopes)].join("\u0000"), (entry) => this.heldItem(entry));
    this.fill("lates", lates, (row) => row, (row) => this.lateItem(row));
    this.fill("deads", deads, (row) => row, (row) => this.deadItem(row));
    this.fill("sources", frame.sources, (source) => JSON.stringify(source), (source) => this.sourceItem(source));
  }

  // Bring a list up to date with as few new elements as possible: those of known keys stay.
  fill(id, entries, keyOf, build) {
    const list = get(id);
    const old = this.seen[id] ?? new Map();
    const now = new Map();
    for (const entry of entries) now.set(keyOf(entry), null);
    const same = now.size === old.size && [...now.keys()].every((key, i) => key === [...old.keys()][i]);
    if (same) return;
    for (const entry of entries) now.set(keyOf(entry), old.get(keyOf(entry)) ?? build(entry));
    list.replaceChildren(...now.values());
    this.seen[id] = now;
    get(`${id}-none`).hidden = now.size > 0;
  }

  time(units) {
    return moment(units, this.model.frame.unit, this.model.frame.timestamps, this.step);
  }

  // How fine times have to be told, in units: milliseconds mean nothing where hours are shown.
  get step() {
    return Math.max(this.scene.shownSpan / 2000, 1);
  }

  marks(element, key) {
    element.addEventListener("pointerenter", () => this.mark(key));
    element.addEventListener("pointerleave", () => this.mark(null));
    return element;
  }

  backItem({ match, lane }) {
    const query = this.model.frame.queries[lane];
    const { unit } = this.model.frame;
    const { by, clock } = match.back;
    const stood = match.left === null || clock === null ? null : clock - match.left;
    const why = make("p", "why");
    if (by) {
      why.append("when ", make("b", "", by.id === null ? by.type : `${by.type} ${by.id}`), by.late ? ` came, ${length(by.late, unit)} late` : " came");
    }
    const stands = stood ? `stood for ${length(stood, unit)}` : "taken back at once";
    const item = make("li", match.fell > 0 ? "fresh" : "", make("p", "head", make("b", "", query.name), make("span", "by", `${stands}, ${this.time(clock)}`)),
      make("p", "chain", make("s", "", match.events.join(" → "))), by ? why : null);
    return this.marks(item, match.key);
  }

  heldItem({ query, waiting }) {
    const { unit } = this.model.frame;
    const scopes = waiting.scopes.map((scope) => {
      const reached = scope.horizon === null ? "nothing is proven yet" : `now at ${this.time(scope.horizon)}, ${length(scope.ends - scope.horizon, unit)} to go`;
      return make("p", "why", make("b", "", scope.type), ` up to ${this.time(scope.ends)} may still come. Waits for ${scope.waits_for}: ${reached}`,
        scope.source == null ? null : `, held back by ${scope.source}`);
    });
    const item = make("li", "", make("p", "head", make("b", "", query.name), make("span", "by", `since ${this.time(waiting.since)}`)),
      make("p", "chain", waiting.events.join(" → ")), ...scopes);
    return this.marks(item, waiting.events.join("\u0000"));
  }

  lateItem(row) {
    const query = row.query === null ? null : this.model.frame.queries[row.query]?.name;
    const by = row.late_by == null ? "" : `, by ${length(row.late_by, this.model.frame.unit)}`;
    const effect = [row.missed ? `${count(row.missed)} missed` : null, row.wrong ? `${count(row.wrong)} wrong` : null].filter(Boolean).join(", ");
    return make("li", "", make("p", "head", make("b", "", row.reason ?? "late"), make("span", "by", query ?? "all queries")),
      make("p", "chain", [row.type, row.id].filter((part) => part != null).join(" ") || "(no id)", make("span", "why", by)),
      row.detail ? make("p", "why", row.detail) : null, effect ? make("p", "why", `matches: ${effect}`) : null);
  }

  deadItem(row) {
    return make("li", "", make("p", "head", make("b", "", row.reason), make("span", "by", row.line == null ? "" : `line ${row.line}`)),
      make("p", "why", row.detail ?? ""), make("code", "", row.text ?? ""));
  }

  sourceItem(source) {
    const { unit } = this.model.frame;
    const [half, most, nearly, all] = source.lateness;
    const largest = Math.max(...this.model.frame.sources.map((one) => one.lateness[3] ?? 0), 1e-9);
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("class", "reach");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("viewBox", "0 0 100 12");
    for (const [name, value] of [["all", all], ["q99", nearly], ["q90", most], ["q50", half]]) {
      const rect = document.createElementNS(space, "rect");
      rect.setAttribute("class", name);
      rect.setAttribute("y", "3");
      rect.setAttribute("height", "6");
      rect.setAttribute("width", String(value ? Math.max(Math.sqrt(value / largest) * 100, 0.8) : 0));
      svg.append(rect);
    }
    const far = [half, most, nearly, all].map((value) => (value == null ? "–" : length(Math.round(value), unit)));
    const lag = source.idle ? "idle" : source.lag === null ? "silent" : source.lag ? `${length(source.lag, unit)} behind` : "at the clock";
    const item = make("li", "", make("b", "", source.name), make("span", "by", lag), svg,
      make("span", "why", `half ≤ ${far[0]}, 90 % ≤ ${far[1]}, 99 % ≤ ${far[2]}`), make("span", "why", `${count(source.events)} events`));
    item.title = `Lateness of ${source.name}: half of the last events at most ${far[0]}, 90 % ${far[1]}, 99 % ${far[2]}, all ${far[3]}`;
    return item;
  }
}
