// Numbers, times and lengths of time as people read them. Times are in units of the stream.

export const NANOS = { ns: 1, us: 1e3, ms: 1e6, s: 1e9, min: 6e10, h: 3.6e12, d: 8.64e13 };

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (n) => (n == null ? "–" : grouped.format(n));

export function rate(n) {
  if (n == null) return "–";
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1) : n < 10_000 ? grouped.format(n) : `${(n / 1000).toFixed(n < 100_000 ? 1 : 0)}k`;
}

export const percent = (share) =>
  share === 0 ? "0 %" : share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;

export function bytes(n) {
  if (n == null) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000) return `${unit === "B" || n >= 100 ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

// "1 h 45 min", "250 ms": two units at most.
export function length(units, unit) {
  if (units == null) return "–";
  if (!(unit in NANOS)) return count(units);
  let nanos = Math.abs(units) * NANOS[unit];
  if (nanos === 0) return `0 ${unit}`;
  const names = Object.keys(NANOS).reverse();
  const first = names.find((name) => nanos >= NANOS[name]) ?? "ns";
  if (["ns", "us", "ms", "s"].includes(first)) {
    const value = nanos / NANOS[first];
    return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toPrecision(2)} ${first}`;
  }
  const next = names[names.indexOf(first) + 1];
  const whole = Math.floor(nanos / NANOS[first]);
  const rest = Math.round((nanos - whole * NANOS[first]) / NANOS[next]);
  return rest ? `${whole} ${first} ${rest} ${next}` : `${whole} ${first}`;
}

const two = (n) => String(n).padStart(2, "0");

// A time of the stream; ``step`` (units) is how fine it has to be.
export function moment(units, unit, timestamps, step = 1, withDay = false) {
  if (units == null) return "–";
  if (!timestamps || !(unit in NANOS)) return unit && unit !== "d" ? `${count(units)} ${unit}` : count(units);
  const millis = (units * NANOS[unit]) / 1e6;
  const date = new Date(millis);
  if (Number.isNaN(date.getTime())) return count(units);
  const day = `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`;
  const fine = step * NANOS[unit];
  if (fine >= NANOS.d) return day;
  let time = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
  if (fine < NANOS.min) time += `:${two(date.getUTCSeconds())}`;
  if (fine < NANOS.s) time += `.${String(date.getUTCMilliseconds()).padStart(3, "0")}`;
  return withDay ? `${day} ${time}` : time;
}

const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// "Fri 8 Mar" where a tick of the axis is a midnight; else nothing.
export function midnight(units, unit, timestamps) {
  if (!timestamps) return null;
  const date = new Date((units * NANOS[unit]) / 1e6);
  const ours = date.getUTCHours() === 0 && date.getUTCMinutes() === 0 && date.getUTCSeconds() === 0;
  return ours ? `${DAYS[date.getUTCDay()]} ${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}` : null;
}

const ROUND = [1, 2, 5, 10, 20, 50, 100, 200, 500];
const STEPS = ["ns", "us", "ms"].flatMap((u) => ROUND.map((n) => n * NANOS[u]))
  .concat([1, 2, 5, 10, 15, 30].map((n) => n * NANOS.s), [1, 2, 5, 10, 15, 30].map((n) => n * NANOS.min))
  .concat([1, 2, 3, 4, 6, 8, 12, 16].map((n) => n * NANOS.h), [1, 2, 3, 4, 7, 14, 30, 60, 120, 365].map((n) => n * NANOS.d));

// Round lengths of time, in units, ascending.
export function steps(unit) {
  const per = NANOS[unit] ?? NANOS.s;
  return STEPS.map((nanos) => nanos / per).filter((step) => step >= 1);
}

export const atLeast = (unit, wanted) => {
  const all = steps(unit);
  return all.find((step) => step >= wanted) ?? all[all.length - 1];
};
