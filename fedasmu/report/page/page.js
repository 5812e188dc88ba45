"use strict";
// Everything that comes from a run is set as text, never as HTML.

const report = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const hidden = new Set(); // methods
let league = null, charts = [], axisChosen = 0, curve = null;
const timeline = new Timeline();

function swatch(method) {
  const dash = colours.dash(method).join(" ");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [key, value] of Object.entries({ x2: 22, y1: 2, y2: 2, stroke: "currentColor", "stroke-width": 3, "stroke-dasharray": dash })) line.setAttribute(key, value);
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}

function showChosen() {
  charts.forEach(chart => chart.show(hidden));
  [...$("league").tBodies[0].rows].forEach(row => { row.hidden = hidden.has(+row.dataset.method); });
  $("methods").querySelectorAll("input").forEach(box => { box.checked = !hidden.has(+box.value); });
}

function listMethods(open) { // a closed list has the methods that are shown now, and a sign that there are more
  $("more").ariaExpanded = String(open);
  $("methods").querySelectorAll("label").forEach((chip, method) => { chip.hidden = !open && hidden.has(method); });
  $("more").textContent = open ? "close the list" : `+${hidden.size} more`;
  $("more").hidden = !open && hidden.size === 0;
}

function choose(shown) {
  league.methods.forEach((_, method) => { if (shown(method)) hidden.delete(method); else hidden.add(method); });
  showChosen();
}

function showToggles() {
  $("methods").querySelector("div").replaceChildren(...league.methods.map((name, method) => {
    const box = element("input", { type: "checkbox", name: "method", value: String(method) });
    const label = element("label", { title: "Double-click: only this one" }, box, swatch(method), name);
    label.style.setProperty("--method", `var(--${colours.method(method)})`);
    box.addEventListener("change", () => { if (box.checked) hidden.delete(method); else hidden.add(method); showChosen(); });
    label.addEventListener("dblclick", () => choose(other => other === method));
    return label;
  }));
  $("show-few").hidden = league.few.length === league.methods.length;
  $("show-all").hidden = $("show-none").hidden = league.methods.length < 3;
}

function amount(text) { // "1,019 (1.20x)" -> 1019; "not reached" -> NaN
  return parseFloat(text.replaceAll(",", ""));
}

const isScore = name => name === league.metric.name || /^(last|at |best)/.test(name);
const bestIsHighest = name => isScore(name) && league.metric.larger;

function sortTable(column, header) { // the first click puts the best on top
  const sorted = header.getAttribute("aria-sort");
  const ascending = sorted ? sorted !== "ascending" : !bestIsHighest(league.table.header[column]);
  [...header.parentNode.cells].forEach(cell => cell.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = $("league").tBodies[0], sign = ascending ? 1 : -1;
  const compare = (a, b) => {
    const [x, y] = [a, b].map(row => row.cells[column].textContent);
    const [p, q] = [amount(x), amount(y)];
    if (column === 0) return sign * (league.ranks[a.dataset.method] - league.ranks[b.dataset.method]);
    if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q); // what is not known stays at the end
    return sign * (p - q);
  };
  body.append(...[...body.rows].sort(compare));
}

function showLeague() {
  const header = element("tr", {}, ...league.table.header.map((name, column) => {
    const button = element("button", { type: "button" }, name), cell = element("th", { scope: "col" }, button);
    button.addEventListener("click", () => sortTable(column, cell));
    return cell;
  }));
  const rows = league.table.rows.map(([name, ...values], method) => {
    const mark = element("i"), row = element("tr");
    mark.style.setProperty("--method", `var(--${colours.method(method)})`);
    row.dataset.method = method;
    const bold = new Set(league.table.best[method]);
    const rank = element("small", { title: `rank by ${league.metric.name}` }, String(league.ranks[method]));
    row.append(element("th", { scope: "row" }, rank, mark, name),
      ...values.map((value, at) => element("td", {}, bold.has(at + 1) ? element("b", {}, value) : value)));
    return row;
  });
  $("league").replaceChildren(element("thead", {}, header), element("tbody", {}, ...rows));
  const bold = league.methods.length > 1 ? " Bold: the best, and what the seeds cannot tell from it." : "";
  $("league-note").textContent = league.table.note + bold;
}

function showAxes() {
  const choices = league.curves.map(({ label }, at) => {
    const box = element("input", { type: "radio", name: "axis", checked: at === axisChosen });
    box.addEventListener("change", () => { axisChosen = at; showCurves(); });
    return element("label", {}, box, label);
  });
  $("axis").replaceChildren(element("legend", {}, "Over"), ...choices);
}

function showCurves() {
  if (curve) { curve.u.destroy(); charts.splice(charts.indexOf(curve), 1); }
  curve = curveChart($("curves"), league, axisChosen, $("smooth").checked);
  const seeds = league.runs.length > league.methods.length;
  const what = seeds ? "Line: the mean over the seeds. Band: from the lowest to the highest seed." : "One seed each.";
  const cut = curve.cut ? ` Shown as far as every method got (${short(curve.cut)}).` : "";
  $("curves-note").textContent = what + ($("smooth").checked ? " Lines are running means." : "") + cut;
  curve.show(hidden);
  charts.push(curve);
}

function showDistributions() {
  const known = league.distributions.filter(chart => chart.lines.length);
  $("decisions").hidden = known.length === 0;
  $("distributions").replaceChildren(...known.map(chart => {
    const place = element("div", { className: "plot", role: "img", ariaLabel: `${chart.title}: ${chart.note}` });
    return element("figure", {}, element("h3", {}, chart.title), element("p", { className: "note" }, chart.note), place);
  }));
  document.querySelectorAll("#distributions .plot").forEach((place, at) => {
    charts.push(distributionChart(place, league, known[at]));
  });
}

function showDetails() {
  const cells = (kind, values) => values.map(value => element(kind, {}, value));
  $("runs").replaceChildren(element("thead", {}, element("tr", {}, ...cells("th", league.run_header))),
    element("tbody", {}, ...league.runs.map(values => element("tr", {}, ...cells("td", values)))));
  $("settings").replaceChildren(element("tbody", {}, ...Object.entries(league.settings)
    .map(([key, value]) => element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, value)))));
}

async function showTask(task) {
  league = report.leagues[task];
  colours.looks = league.looks;
  charts.forEach(chart => chart.u && chart.u.destroy());
  hidden.clear();
  charts = []; curve = null;
  $("lesson").textContent = league.lesson;
  $("curves-title").textContent = league.measured ? `The ${league.metric.name}, measured ${league.measured}` : `Test ${league.metric.name}`;
  $("subtitle").textContent = `${league.title} · ${league.methods.length} method${league.methods.length > 1 ? "s" : ""}, ${league.runs.length} run${league.runs.length > 1 ? "s" : ""}`;
  showToggles(); showLeague(); showAxes(); showCurves(); showDistributions(); showDetails();
  choose(method => league.few.includes(method));
  listMethods(false);
  $("timeline-run").replaceChildren(...league.methods.map((name, at) => element("option", { value: String(at) }, name)));
  $("timeline-section").hidden = !league.told;
  if (league.told) await timeline.show(league.timelines[0]);
}

function redraw() {
  colours.known.clear();
  charts.forEach(chart => chart.redraw());
  timeline.draw();
}

$("smooth").addEventListener("change", showCurves);
$("more").addEventListener("click", () => listMethods($("more").ariaExpanded !== "true"));
$("show-few").addEventListener("click", () => choose(method => league.few.includes(method)));
$("show-all").addEventListener("click", () => { choose(() => true); listMethods(true); });
$("show-none").addEventListener("click", () => choose(() => false));
$("task").append(...report.leagues.map((one, at) => element("option", { value: String(at) }, one.title)));
$("task-choice").hidden = report.leagues.length < 2;
$("task").addEventListener("change", () => showTask(+$("task").value));
$("timeline-run").addEventListener("change", () => timeline.show(league.timelines[+$("timeline-run").value]));
showTask(0).then(() => { document.documentElement.dataset.drawn = "yes"; });
