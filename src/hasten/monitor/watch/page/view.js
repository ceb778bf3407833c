"use strict";
// The view of `hasten watch`: `runs.json` has the state of each run, Trackio's API has the metrics, thinned out by Trackio.

const POINTS = 1500; // per run and metric
const MOST = 6; // runs that are compared
const COLOURS = ["#2a8fb3", "#c0562b", "#4b7f2c", "#7a4fa3", "#a3852a", "#b03a6a"];
const MEMORY = ["process.memory.private", "process.memory.tree", "torch.memory.allocated", "gpu.memory.process"];
const state = { project: "", events: [], phases: [], runs: [], chosen: [], logs: {}, at: {}, cursor: 0, metric: "system.cpu.others" };
const $ = (id) => document.getElementById(id);

function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

async function ask(address, given) {
  const answer = await fetch(address, given);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer.json();
}

// What is shown of a number.
const number = (value) => {
  if (value === undefined || value === null || !Number.isFinite(value)) return "";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
};
const seconds = (value) => {
  if (!Number.isFinite(value)) return "";
  return value >= 0.1 ? `${value.toFixed(2)} s` : `${Number((1000 * value).toPrecision(3))} ms`;
};
const runById = (id) => state.runs.find((run) => run.id === id);
const colourOf = (id) => COLOURS[state.chosen.indexOf(id) % COLOURS.length];

// The list of runs.
function visible() {
  const text = $("filter").value.toLowerCase();
  const all = state.runs.filter((run) => `${run.id} ${run.state} ${run.target || ""}`.toLowerCase().includes(text));
  const rank = (run) => (run.state === "running" ? 0 : 1);
  return all.sort((a, b) => rank(a) - rank(b) || (a.age_s ?? 1e12) - (b.age_s ?? 1e12) || a.id.localeCompare(b.id));
}

function drawList() {
  const shown = visible();
  const focused = document.activeElement?.dataset?.id;
  $("runs").replaceChildren(...shown.map((run, position) => {
    const row = element("div", undefined, state.chosen.includes(run.id) ? "run chosen" : "run");
    row.tabIndex = 0;
    row.dataset.id = run.id;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(state.chosen.includes(run.id)));
    const dot = element("span", undefined, "dot");
    if (state.chosen.includes(run.id)) dot.style.background = colourOf(run.id);
    const name = element("div", undefined, "name");
    name.append(dot, run.id);
    const planned = run.planned ? ` of ${run.planned.toLocaleString("en")}` : "";
    const facts = element("div", undefined, "facts");
    facts.append(element("span", run.state, `state-${run.state}`), element("span", `step ${run.step.toLocaleString("en")}${planned}`));
    const shownValues = [
      [run.values["training.step_time"], (value) => `${seconds(value)}/step`], [run.values["training.samples"], (value) => `${number(value)} samples/s`],
      [run.values["training.loss"], (value) => `loss ${number(value)}`],
    ];
    for (const [value, words] of shownValues) if (value !== undefined) facts.append(element("span", words(value)));
    row.append(name, facts);
    if (run.firing.length) row.append(element("div", run.firing.map((alert) => alert.rule).join(", "), "rules"));
    row.addEventListener("click", (event) => { state.cursor = position; choose(run.id, event.ctrlKey || event.metaKey || event.shiftKey); });
    return row;
  }));
  if (focused) document.querySelector(`.run[data-id="${CSS.escape(focused)}"]`)?.focus();
  const running = state.runs.filter((run) => run.state === "running").length;
  const fires = state.runs.reduce((sum, run) => sum + run.firing.length, 0);
  $("counts").textContent = `${running} running, ${state.runs.length} in all, ${fires} alerts firing`;
  $("empty").hidden = state.runs.length > 0;
}

function choose(id, add) {
  if (!add) state.chosen = [id];
  else if (state.chosen.includes(id)) state.chosen = state.chosen.filter((other) => other !== id);
  else state.chosen = [...state.chosen, id].slice(-MOST);
  drawList();
  load();
}

// Charts.
function layout(more) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--line").trim();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  return {
    margin: { l: 48, r: 10, t: 8, b: 34 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 12, family: "system-ui, sans-serif" }, showlegend: false, hovermode: "x unified",
    legend: { orientation: "h", y: -0.15, font: { size: 11 } },
    xaxis: axis, yaxis: { ...axis, rangemode: "tozero", ...more?.yaxis },
    uirevision: "same", ...more?.rest, shapes: more?.shapes || [], annotations: more?.annotations || [],
  };
}
const config = { displayModeBar: false, responsive: true };
const resized = new ResizeObserver((entries) => { for (const { target } of entries) if (target.data && target.offsetParent) Plotly.Plots.resize(target); });
function plot(where, traces, more) {
  const place = typeof where === "string" ? $(where) : where;
  Plotly.react(place, traces, layout(more), config);
  resized.observe(place);
}

function series(id, read) {
  const xs = [], ys = [];
  for (const row of state.logs[id] || []) {
    const value = read(row);
    if (value !== undefined && value !== null) { xs.push(row.step); ys.push(value); }
  }
  return { x: xs, y: ys };
}
const phaseNames = (id) => {
  const names = new Set();
  for (const row of state.logs[id] || []) for (const key in row) if (key.startsWith("phase.")) names.add(key.slice(6));
  return [...names].filter((name) => !state.events.includes(name)).sort((a, b) => order(a) - order(b));
};
const order = (name) => (state.phases.indexOf(name) + 99) % 99;
const phaseColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--phase-${name}`).trim() || "#8a929a";
const stepTime = (row) => {
  if (row["training.step_time"] === undefined) return undefined;
  return row["training.step_time"] - state.events.reduce((sum, name) => sum + (row[`phase.${name}`] || 0), 0);
};

// What the plan was proved to do, as a band.
function band(run) {
  const { update_low_s: low, update_high_s: high } = run?.proved || {};
  if (!low || !high) return [];
  return [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: low, y1: high, fillcolor: "#4b7f2c", opacity: 0.28, line: { width: 0 }, layer: "above" }];
}
// Alerts along the steps: shaded from their first bad window to their end.
function spans(ids) {
  return ids.flatMap((id) => runById(id)?.spans || []).slice(-40).map(([from, to]) => ({ type: "rect", yref: "paper", y0: 0, y1: 1, x0: from, x1: Math.max(to, from + 1), fillcolor: "#b3261e", opacity: 0.13, line: { width: 0 }, layer: "below" }));
}

function drawPhases() {
  const ids = state.chosen.slice(0, 4);
  $("phases").replaceChildren(...ids.map((id) => {
    const old = document.querySelector(`#phases figure[data-id="${CSS.escape(id)}"]`);
    if (old) return old;
    const figure = element("figure");
    figure.dataset.id = id;
    figure.append(element("figcaption", id), element("div", undefined, "plot"));
    return figure;
  }));
  for (const figure of $("phases").children) {
    const id = figure.dataset.id;
    const traces = phaseNames(id).map((name) => ({
      ...series(id, (row) => row[`phase.${name}`] ?? (row["training.step_time"] === undefined ? undefined : 0)), name, stackgroup: "phases", mode: "lines",
      line: { width: 0.5, color: phaseColour(name) }, hovertemplate: "%{y:.4f} s",
    }));
    plot(figure.lastChild, traces, { yaxis: { title: { text: "s per step" } }, shapes: [...spans([id]), ...band(runById(id))], rest: { showlegend: true } });
  }
  $("band").textContent = ids.some((id) => band(runById(id)).length) ? "Over the steps of the run. Green: what the plan was proved to take. Red: an alert." : "Over the steps of the run. Red: an alert.";
}

function drawLines() {
  const ids = state.chosen;
  const lines = (read) => ids.map((id) => ({ ...series(id, read), name: id, mode: "lines", line: { color: colourOf(id), width: 1.6 } }));
  const shapes = spans(ids), several = { showlegend: ids.length > 1 };
  plot("step", lines(stepTime), { yaxis: { title: { text: "s" } }, shapes: [...shapes, ...(ids.length === 1 ? band(runById(ids[0])) : [])], rest: several });
  plot("throughput", lines((row) => row["training.samples"]), { yaxis: { title: { text: "samples/s" } }, shapes, rest: several });
  plot("loss", lines((row) => row["training.loss"]), { yaxis: { rangemode: "normal" }, shapes, rest: several });
  const memory = ids.flatMap((id) => MEMORY.map((name, at) => ({
    ...series(id, (row) => (row[name] === undefined ? undefined : row[name] / 2 ** 30)), name: ids.length > 1 ? `${id} ${name}` : name, mode: "lines",
    line: { color: ids.length > 1 ? colourOf(id) : COLOURS[at], width: 1.6, dash: ["solid", "dot", "dash", "dashdot"][at] },
  }))).filter((trace) => trace.x.length);
  plot("memory", memory, { yaxis: { title: { text: "GiB" } }, shapes, rest: { showlegend: ids.length === 1 } });
  const unit = runById(ids[0])?.units?.[state.metric] || "";
  plot("other", lines((row) => row[state.metric]), { yaxis: { title: { text: unit } }, shapes, rest: several });
}

function drawMetrics() {
  const names = new Set();
  for (const id of state.chosen) for (const row of (state.logs[id] || []).slice(-20)) for (const key in row) if (!["step", "timestamp"].includes(key)) names.add(key);
  if (!names.has(state.metric) && names.size) state.metric = [...names].sort()[0];
  const listed = [...names].sort();
  if ([...$("metric").options].map((option) => option.value).join() !== listed.join())
    $("metric").replaceChildren(...listed.map((name) => new Option(name, name)));
  $("metric").value = state.metric;
}

function drawAlerts() {
  const now = [], past = [];
  for (const id of state.chosen) {
    const run = runById(id);
    if (!run) continue;
    const put = (cards, kind, title, words) => { const card = element("div", undefined, kind); card.append(element("b", `${id}: ${title}`), words); cards.push(card); };
    for (const alert of run.alerts) {
      const fires = run.firing.some((one) => one.rule === alert.rule && one.at === alert.at);
      put(fires ? now : past, fires ? "alert" : "alert past", alert.rule, alert.text);
    }
    for (const one of run.incidents) put(past, "alert past", one.kind, `update ${one.update}: ${one.words}; ${one.action}`);
  }
  const open = $("alerts").querySelector("details")?.open;
  $("alerts").replaceChildren(...now);
  if (past.length) {
    const details = element("details");
    details.open = Boolean(open);
    details.append(element("summary", `Earlier alerts and incidents: ${past.length}`), ...past.reverse());
    $("alerts").append(details);
  }
}

function drawEvidence() {
  $("evidence").replaceChildren(...state.chosen.map((id) => {
    const run = runById(id), table = element("table");
    const row = (name, value) => {
      const made = element("tr");
      made.append(element("td", name), element("td", typeof value === "number" ? number(value) : String(value)));
      table.append(made);
    };
    if (state.chosen.length > 1) row("run", id);
    row("target", run?.target || "unknown");
    row("plan", run?.plan.length ? run.plan.join(", ") : "none: the run trains plain");
    for (const [name, value] of Object.entries(run?.proved || {})) row(name.replaceAll("_", " "), value);
    for (const [name, value] of Object.entries(run?.held_out || {})) row(`held-out ${name}`, value);
    if (run?.how) row("ended", run.how);
    return table;
  }));
}

function draw() {
  if (!state.chosen.length) return;
  drawMetrics();
  drawAlerts();
  drawPhases();
  drawLines();
  drawEvidence();
}

async function load() {
  const stale = state.chosen.filter((id) => runById(id) && state.at[id] !== runById(id).step);
  if (stale.length) {
    const given = stale.map((id) => ({ run: id, run_id: id }));
    const body = JSON.stringify({ project: state.project, runs: given, max_points: POINTS, scalar_only: true });
    const found = await ask("/api/get_logs_batch", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    for (const one of found.data) { state.logs[one.run] = one.logs; state.at[one.run] = runById(one.run)?.step; }
  }
  draw();
  document.body.dataset.drawn = state.chosen.join(" ");
}

async function update() {
  try {
    Object.assign(state, await ask("runs.json", { cache: "no-store" }));
    if (!state.chosen.length && state.runs.length) state.chosen = [visible()[0].id];
    drawList();
    await load();
  } catch (error) {
    $("counts").textContent = `No answer (${error.message}): has \`hasten watch\` ended?`;
  }
  setTimeout(update, 2000);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  if (state.chosen.length) draw();
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches?.("input, select")) { if (event.key === "Escape") event.target.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = [...$("runs").children];
  const go = (by) => { state.cursor = Math.min(Math.max(state.cursor + by, 0), rows.length - 1); rows[state.cursor]?.focus(); event.preventDefault(); };
  if (event.key === "j" || event.key === "ArrowDown") go(1);
  else if (event.key === "k" || event.key === "ArrowUp") go(-1);
  else if (event.key === "Enter" && rows[state.cursor]) choose(rows[state.cursor].dataset.id, false);
  else if (event.key === " " && rows[state.cursor]) { event.preventDefault(); choose(rows[state.cursor].dataset.id, true); }
  else if (event.key === "Escape") { state.chosen = state.chosen.slice(0, 1); drawList(); load(); }
  else if (event.key === "/") { event.preventDefault(); $("filter").focus(); }
  else if (event.key === "d") $("theme").click();
});
$("filter").addEventListener("input", drawList);
$("metric").addEventListener("change", () => { state.metric = $("metric").value; drawLines(); });
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
update();
