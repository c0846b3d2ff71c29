"use strict";
// The page of a job: it follows the events of rank 0, and draws what they say.

const at = (id) => document.getElementById(id);
const numbers = new Map(); // by name: {points, last, figure, cursor, scale}
let view = null, paused = false;

const kept = {
  get(name) { try { return localStorage.getItem(name) || ""; } catch { return ""; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* the browser keeps nothing */ } },
};

// An element with a class, a text and children.
function el(tag, cls, text, ...children) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text !== undefined && text !== null) e.textContent = text;
  e.append(...children);
  return e;
}

function svg(tag, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

function short(x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e15 || size < 1e-3) return x.toExponential(2).replace(/\.?0+e/, "e");
  if (size >= 1e4) return Math.round(x).toLocaleString("en");
  return String(Number(x.toPrecision(4)));
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i++) n /= 1024;
  return (i === 0 || n >= 100 ? n.toFixed(0) : n.toFixed(1)) + " " + units[i];
}

function time(s) {
  s = Math.max(0, Math.round(s));
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  if (h > 0) return `${h} h ${m} min`;
  if (m > 0) return `${m} min ${s % 60} s`;
  return `${s} s`;
}

const percent = (x) => (x > 0 && x < 0.005 ? "< 1 %" : Math.round(100 * x) + " %");

// A cell with a number, and a bar of its part of 1.
function barred(text, part) {
  const inner = el("div"), td = el("td", "", text, el("div", "bar", null, inner));
  td.lastChild.setAttribute("aria-hidden", "true");
  inner.style.width = 100 * Math.min(1, Math.max(0, part)) + "%";
  return td;
}

function table(caption, heads, rows) {
  const head = el("tr");
  for (const h of heads) {
    const th = el("th", "", h);
    th.scope = "col";
    head.append(th);
  }
  const t = el("table", "", null, el("thead", "", null, head), el("tbody", "", null, ...rows));
  t.setAttribute("aria-label", caption);
  return t;
}

function rankRow(row, cells) {
  const th = el("th", "", String(row.rank));
  th.scope = "row";
  const slowest = view.slowest && view.slowest.rank === row.rank;
  const words = slowest ? "slowest" : row.age < 0 ? "not heard yet" : row.age > 5 ? `silent for ${time(row.age)}` : "";
  if (words) th.append(" ", el("small", "", words));
  return el("tr", slowest ? "slowest" : "", null, th, ...cells);
}

// The ticks of an axis: round numbers in a range.
function ticks(lo, hi, most) {
  const step0 = (hi - lo) / most, power = 10 ** Math.floor(Math.log10(step0));
  const step = power * [1, 2, 5, 10].find((f) => f * power >= step0 * 0.999);
  const list = [];
  for (let x = Math.ceil(lo / step) * step; x <= hi + step * 1e-6; x += step) list.push(Math.abs(x) < step * 1e-6 ? 0 : x);
  return list;
}

function shown(n) {
  const range = Number(at("range").value);
  return range ? n.points.filter((p) => p[0] >= view.seconds - range) : n.points;
}

function draw(name) {
  const n = numbers.get(name), points = shown(n), chart = n.figure.querySelector("svg");
  const width = Math.max(160, chart.clientWidth), height = Math.max(80, chart.clientHeight);
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren();
  const chosen = n.cursor === null ? null : points[Math.max(0, Math.min(points.length - 1, n.cursor))];
  const value = chosen ? chosen[1] : n.last;
  n.figure.querySelector(".value").textContent = short(value) + (chosen ? ` at ${time(chosen[0])}` : "");
  let words = `${name}: ${short(n.last)} now`;
  if (points.length > 1) words += `, ${short(points[0][1])} ${time(view.seconds - points[0][0])} ago`;
  n.figure.setAttribute("aria-label", chosen ? `${name}: ${short(value)} at ${time(chosen[0])}` : words);
  if (points.length < 2) return;
  const log = at("log").checked && points.every((p) => p[1] > 0);
  const y0 = points.map((p) => (log ? Math.log10(p[1]) : p[1]));
  let lo = Math.min(...y0), hi = Math.max(...y0);
  if (hi - lo < 1e-9 * Math.max(1, Math.abs(hi))) { lo -= Math.abs(lo) / 10 || 1; hi += Math.abs(hi) / 10 || 1; }
  const pad = (hi - lo) * 0.06;
  lo -= pad; hi += pad;
  const labels = ticks(lo, hi, 4), first = points[0][0], last = points[points.length - 1][0];
  const texts = labels.map((y) => short(log ? 10 ** y : y));
  const left = 10 + 6.6 * Math.max(...texts.map((t) => t.length)), right = width - 8, top = 8, bottom = height - 18;
  const x = (t) => left + (right - left) * (last > first ? (t - first) / (last - first) : 1);
  const y = (v) => bottom - (bottom - top) * (v - lo) / (hi - lo);
  labels.forEach((v, i) => {
    chart.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(v), y2: y(v) }));
    chart.append(svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, texts[i]));
  });
  chart.append(svg("text", { x: left, y: height - 4 }, time(first)), svg("text", { x: right, y: height - 4, "text-anchor": "end" }, time(last)));
  chart.append(svg("polyline", { class: "curve", points: points.map((p, i) => `${x(p[0]).toFixed(1)},${y(y0[i]).toFixed(1)}`).join(" ") }));
  const mark = chosen || points[points.length - 1];
  if (chosen) chart.append(svg("line", { class: "cursor", x1: x(mark[0]), x2: x(mark[0]), y1: top, y2: bottom }));
  chart.append(svg("circle", { class: "dot", cx: x(mark[0]), cy: y(log ? Math.log10(mark[1]) : mark[1]), r: 3.5 }));
  n.scale = { left, right };
}

// A card shows the value under the pointer, or where the arrow keys have gone.
function figure(name) {
  const f = el("div", "card", null, el("div", "head", null, el("span", "name", name), el("span", "value")), svg("svg", { "aria-hidden": "true" }));
  f.tabIndex = 0;
  f.setAttribute("role", "img");
  const n = numbers.get(name);
  f.addEventListener("keydown", (e) => {
    const count = shown(n).length, now = n.cursor === null ? count - 1 : n.cursor, far = Math.max(1, Math.round(count / 20));
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - far, PageDown: now + far, Home: 0, End: count - 1 }[e.key];
    if (e.key === "Escape") n.cursor = null;
    else if (to === undefined) return;
    else n.cursor = Math.max(0, Math.min(count - 1, to));
    e.preventDefault();
    draw(name);
  });
  const leave = () => { n.cursor = null; draw(name); };
  f.addEventListener("blur", leave);
  f.addEventListener("pointerleave", leave);
  f.addEventListener("pointermove", (e) => {
    const points = shown(n), box = f.querySelector("svg").getBoundingClientRect();
    if (points.length < 2 || !n.scale) return;
    const first = points[0][0], last = points[points.length - 1][0];
    const t = first + (last - first) * (e.clientX - box.left - n.scale.left) / (n.scale.right - n.scale.left);
    n.cursor = points.reduce((best, p, i) => (Math.abs(p[0] - t) < Math.abs(points[best][0] - t) ? i : best), 0);
    draw(name);
  });
  return f;
}

function drawAll() {
  for (const name of numbers.keys()) draw(name);
}

function show() {
  at("program").textContent = view.program;
  document.title = `${view.program}, ${view.ranks} ranks`;
  const ranks = view.ranks === 1 ? "1 rank" : `${view.ranks} ranks`;
  const nodes = view.nodes > 1 ? ` on ${view.nodes} nodes` : "";
  at("facts").textContent = `${ranks}${nodes}, ${view.device}, ${view.collectives}, for ${time(view.seconds)}`;
  for (const [name, n] of numbers) {
    if (!n.figure) at("numbers").append(n.figure = figure(name));
  }
  at("no-numbers").hidden = numbers.size > 0;
  drawAll();

  const s = view.slowest;
  at("slowest").textContent = s ? `The others wait for rank ${s.rank}: it spends ${percent(s.least)} of its time in calls that all make, another rank ${percent(s.most)}.`
    : view.ranks === 1 ? "" : view.apart ? "No rank is clearly slower than the others." : "It is not known yet which rank the others wait for. What waits inside of graphs is not seen.";
  const rows = view.rows.map((r) => rankRow(r, r.shares.map((x) => barred(percent(x), x))));
  at("phases").replaceChildren(table("Share of the time by rank", ["rank", ...view.phases], rows));
  const hidden = view.hidden > 0 ? ` ${view.hidden} more ranks are in metrics.` : "";
  at("time-note").textContent = `Of the last ${view.window} seconds. Streams run beside each other and beside the program: a row may have more than 100 %.${hidden}`;

  at("regions-section").hidden = view.regions.length === 0;
  at("regions").replaceChildren(table("Share of the time by part of the program", ["rank", ...view.regions],
    view.rows.map((r) => rankRow(r, r.regions.map((x) => barred(percent(x), x))))));

  const gpus = view.rows.filter((r) => r.gpu);
  at("gpus-section").hidden = gpus.length === 0;
  at("gpus").replaceChildren(table("GPUs by rank", ["rank", "memory", "busy", "clock", "memory's clock", "power", "heat", "slowed by"], gpus.map((r) => {
    const g = r.gpu, of = (x, most, unit) => (x ? `${short(Math.round(x))}${most ? " of " + short(Math.round(most)) : ""} ${unit}` : "-");
    const why = (g.slowed || []).join(", ");
    return rankRow(r, [
      barred(g.total ? `${bytes(g.used)} of ${bytes(g.total)}` : "-", g.total ? g.used / g.total : 0),
      barred(g.busy + " %", g.busy / 100),
      el("td", "", of(g.clock, g.most_clock, "MHz")), el("td", "", of(g.memory_clock, 0, "MHz")),
      barred(of(g.power, g.power_limit, "W"), g.power_limit ? g.power / g.power_limit : 0),
      el("td", "", g.temperature ? g.temperature + " °C" : "-"),
      el("td", why ? "warn" : "", why || "nothing"),
    ]);
  })));

  const kinds = [...new Set(view.rows.flatMap((r) => r.pools.map((p) => p.kind)))];
  at("memory").replaceChildren(table("Memory by rank", ["rank", "process", ...kinds.map((k) => `${k}, now (at most)`)], view.rows.map((r) => rankRow(r, [
    el("td", "", r.process ? bytes(r.process) : "-"),
    ...kinds.map((k) => {
      const p = r.pools.find((o) => o.kind === k);
      return el("td", "", p ? `${bytes(p.used)} (${bytes(p.peak)})` : "-");
    }),
  ]))));
  at("hosts").replaceChildren(...view.hosts.map((h) => {
    const low = h.free < 0.05 * h.total;
    return el("li", low ? "warn" : "", `node ${h.node}, ${h.name}: ${bytes(h.free)} of ${bytes(h.total)} free${low ? ", which is little" : ""}`);
  }));
}

function take(next) {
  for (const n of next.numbers) {
    if (!numbers.has(n.name)) numbers.set(n.name, { points: [], cursor: null, figure: null });
    const have = numbers.get(n.name);
    have.points.push(...n.points);
    have.last = n.last;
  }
  if (paused && view) return;
  view = next;
  show();
}

function state(text, cls) {
  if (at("state").textContent === text) return;
  at("state").textContent = text;
  at("state").className = cls;
}

function follow() {
  const events = new EventSource("events");
  events.onopen = () => { for (const n of numbers.values()) n.points.length = 0; }; // all of them come anew
  events.onmessage = (e) => {
    const next = JSON.parse(e.data);
    take(next);
    if (next.ended) {
      events.close();
      state("the job has ended", "");
    } else {
      state(paused ? "paused" : "live", paused ? "" : "live");
    }
  };
  events.onerror = () => state("no connection: the job has ended, or the network", "lost");
}

at("theme").value = kept.get("lockstep.theme");
const colour = () => { document.documentElement.dataset.theme = at("theme").value; };
at("theme").addEventListener("change", () => { kept.set("lockstep.theme", at("theme").value); colour(); });
colour();
at("range").addEventListener("change", () => view && drawAll());
at("log").addEventListener("change", () => view && drawAll());
at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  state(paused ? "paused" : "live", paused ? "" : "live");
});
addEventListener("resize", () => view && drawAll());
follow();
