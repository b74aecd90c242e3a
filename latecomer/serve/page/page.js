// The live page of a Latecomer service: one stream of frames in, a timeline and lists out.
//
// Every connection starts anew with a whole picture, so pausing is closing it, and a service that was started again
// needs no care. Nothing is asked of the network but this service.

import { Model } from "/page/model.js";
import { Panels, make } from "/page/panels.js";
import { Scene } from "/page/scene.js";
import { count, length, moment } from "/page/words.js";

const get = (id) => document.getElementById(id);
const model = new Model();
const scene = new Scene(model, get("arrivals"));
const panels = new Panels(model, scene, mark);
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

// --- the stream of frames ---------------------------------------------------------------------------------------------

let source = null;
let paused = false;
let retry = 500;
let timer = null;
let signature = null;

function connect() {
  clearTimeout(timer);
  source?.close();
  source = new EventSource("/v1/live");
  source.onmessage = (message) => {
    retry = 500;
    show("live", "live");
    get("banner").hidden = true;
    receive(JSON.parse(message.data));
  };
  source.onerror = () => {
    source.close(); // the browser's own reconnection would go on from a number that a new process does not know
    show("lost", "connection lost");
    get("banner").textContent = "The service does not answer. What you see is what was known before; trying again.";
    get("banner").hidden = model.frame === null && retry === 500;
    timer = setTimeout(connect, retry);
    retry = Math.min(retry * 2, 5000);
    askedForToken();
  };
}

// A refused stream of events does not say why: ask something small.
async function askedForToken() {
  try {
    const answer = await fetch("/v1/late?limit=1", { credentials: "same-origin" });
    if (answer.status === 401) location.assign("/");
  } catch {
    // Not there at all: the timer tries again.
  }
}

function receive(frame) {
  const now = performance.now();
  model.apply(frame, now);
  const lanes = frame.queries.map((query) => query.name + query.level).join("\u0000");
  if (lanes !== signature || frame.since === 0) {
    if (lanes !== signature) scene.setLanes(panels.lanes().map(pointable));
    signature = lanes;
    get("try").textContent = example(model.example);
  }
  if (frame.since === 0) scene.clock = null;
  panels.update();
  describe();
  wake();
}

// How to send a first event, in the stream's own columns.
function example(event) {
  return `curl ${location.origin}/v1/events -H 'content-type: application/x-ndjson' -d '${JSON.stringify(event)}'`;
}

function show(state, text) {
  if (get("link").dataset.state === state) return;
  get("link").dataset.state = state;
  get("link-text").textContent = text;
  document.body.classList.toggle("lost", state === "lost");
}

// --- drawing ----------------------------------------------------------------------------------------------------------

let waiting = false;

function wake() {
  if (waiting || document.hidden) return;
  waiting = true;
  requestAnimationFrame((now) => {
    waiting = false;
    scene.still = calm.matches;
    if (scene.draw(now) && !paused) wake();
  });
}

function describe() {
  const { frame } = model;
  const text = frame.clock === null ? "Events at their event time; none yet"
    : `Events at their event time, up to the clock at ${moment(frame.clock, frame.unit, frame.timestamps, 1, true)}: ${count(frame.totals.events)} came, ${count(frame.totals.behind)} of them after a later one`;
  get("arrivals").setAttribute("aria-label", text);
}

// --- controls ---------------------------------------------------------------------------------------------------------

function pause(wanted) {
  paused = wanted;
  get("pause").setAttribute("aria-pressed", String(paused));
  get("pause").textContent = paused ? "Go on" : "Pause";
  if (paused) {
    clearTimeout(timer);
    source?.close();
    get("banner").hidden = true;
    show("paused", "paused");
  } else {
    show("connecting", "connecting");
    connect();
  }
}

function zoom(direction) {
  if (!model.frame) return;
  scene.zoom(direction);
  get("span").textContent = length(scene.shownSpan, model.frame.unit);
  wake();
}

const THEMES = ["auto", "light", "dark"];
const TOLD = { auto: "as the system has them", light: "light", dark: "dark" };
const stored = {
  get() {
    try { return localStorage.getItem("latecomer-theme") ?? "auto"; } catch { return "auto"; }
  },
  set(theme) {
    try { localStorage.setItem("latecomer-theme", theme); } catch { /* private window: it holds until the page is left */ }
  },
};

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  get("theme").setAttribute("aria-label", `Colours: ${TOLD[name]}`);
  get("theme").title = `Colours: ${TOLD[name]} (t)`;
  get("theme").textContent = { auto: "◐", light: "○", dark: "●" }[name];
  get("theme").dataset.theme = name;
  scene.colours();
  if (model.frame) panels.update();
  wake();
}

function nextTheme() {
  const name = THEMES[(THEMES.indexOf(get("theme").dataset.theme) + 1) % THEMES.length];
  stored.set(name);
  theme(name);
}

get("pause").addEventListener("click", () => pause(!paused));
get("wider").addEventListener("click", () => zoom(1));
get("closer").addEventListener("click", () => zoom(-1));
get("theme").addEventListener("click", nextTheme);
document.addEventListener("keydown", (press) => {
  if (press.ctrlKey || press.metaKey || press.altKey || press.target instanceof HTMLInputElement) return;
  const onButton = press.target instanceof HTMLButtonElement;
  if (press.key === " " && !onButton) {
    press.preventDefault();
    pause(!paused);
  } else if (press.key === "+" || press.key === "=") zoom(-1);
  else if (press.key === "-") zoom(1);
  else if (press.key === "t") nextTheme();
  else if (press.key === "Escape") mark(null);
});
document.addEventListener("visibilitychange", wake);
window.addEventListener("resize", wake);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(get("theme").dataset.theme));

// --- pointing ---------------------------------------------------------------------------------------------------------

function mark(key) {
  if (scene.marked === key) return;
  scene.marked = key;
  wake();
}

function pointable(canvas) {
  canvas.addEventListener("pointermove", (move) => point(canvas, move));
  canvas.addEventListener("pointerdown", (move) => point(canvas, move));
  canvas.addEventListener("pointerleave", () => {
    get("tip").hidden = true;
    mark(null);
  });
  return canvas;
}

function point(canvas, move) {
  const box = canvas.getBoundingClientRect();
  const found = model.frame && scene.at(canvas, move.clientX - box.left, move.clientY - box.top);
  const tip = get("tip");
  mark(found?.match?.key ?? null);
  tip.hidden = !found;
  if (!found) return;
  tip.replaceChildren(...(found.event ? eventTip(found.event) : matchTip(found.match, found.lane)));
  const left = Math.min(move.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = move.clientY + 18 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${below ? move.clientY + 18 : move.clientY - 12 - tip.offsetHeight}px`;
}

function eventTip(event) {
  const { frame } = model;
  const time = moment(event.ts, frame.unit, frame.timestamps, 1, true);
  const late = event.late ? `${length(event.late, frame.unit)} behind the clock when it came` : "came on time";
  const from = frame.source_names[event.source];
  return [make("p", "", `${frame.types[event.type]?.[0] ?? "other type"} ${event.id ?? ""}`),
    make("p", "", `${time}, ${late}${from === undefined ? "" : `, from ${from}`}${event.broke ? `; ${event.broke}` : ""}`)];
}

function matchTip(match, lane) {
  const { unit } = model.frame;
  const values = Object.entries(match.values).map(([name, value]) => `${name} ${value}`).join(", ");
  const parts = [make("p", "", match.events.join(" → "))];
  if (values) parts.push(make("p", "", values));
  const wait = match.wait === null ? "" : match.wait ? `, known ${length(match.wait, unit)} after it was complete` : ", known at once";
  parts.push(make("p", "", `${lane.query.name}${wait}`));
  if (match.fell !== null) {
    const by = match.back?.by;
    parts.push(make("p", "", `taken back${by ? ` when ${by.type} ${by.id ?? ""} came, ${length(by.late, unit)} late` : ""}`));
  }
  return parts;
}

pointable(get("arrivals"));
theme(stored.get());
connect();
