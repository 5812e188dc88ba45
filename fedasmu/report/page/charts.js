"use strict";
// Curves and distributions, drawn by uPlot. Colours are asked for at every drawing, so that a change of theme is a redraw.

const colours = {
  known: new Map(),
  probe: document.createElement("span"),
  get(name) {
    if (!this.known.has(name)) {
      if (!this.probe.isConnected) { this.probe.hidden = true; document.body.append(this.probe); }
      this.probe.style.color = `var(--${name})`;
      this.known.set(name, getComputedStyle(this.probe).color);
    }
    return this.known.get(name);
  },
  faint(name, opacity) { return this.get(name).replace(/^rgba?\(([^,]+,[^,]+,[^,)]+).*$/, `rgba($1, ${opacity})`); },
  looks: [], // of the methods of the task: places in the palette
  method(method) { return `m${this.looks[method] % 8}`; },
  // After eight colours the same ones come again, with a broken line.
  dash(method) { return [[], [8, 4], [2, 3]][Math.floor(this.looks[method] / 8) % 3]; },
};

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function short(value) {
  return value == null ? "–" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
}

const axis = (label, size) => ({
  label, size, labelSize: 22, labelGap: 0, font: "12px system-ui", labelFont: "12px system-ui",
  stroke: () => colours.get("muted"),
  grid: { stroke: () => colours.get("line"), width: 1 },
  ticks: { stroke: () => colours.get("line"), width: 1, size: 5 },
});

// What the cursor is at: every visible method's value, the highest first.
function hover(labels, entries) {
  const tip = element("div", { className: "tip", hidden: true });
  return {
    hooks: {
      init: u => { u.over.append(tip); u.over.addEventListener("mouseleave", () => { tip.hidden = true; }); },
      setCursor: u => {
        const at = u.cursor.idx;
        const rows = entries.filter(one => u.series[one.series].show && u.data[one.series][at] != null)
          .map(one => [u.data[one.series][at], one]).sort((a, b) => b[0] - a[0]);
        tip.hidden = at == null || u.cursor.left < 0 || rows.length === 0;
        if (tip.hidden) return;
        tip.replaceChildren(element("b", {}, `${labels[0]}: ${short(u.data[0][at])}`), ...rows.slice(0, 12).map(([value, one]) => {
          const mark = element("i");
          mark.style.setProperty("--method", `var(--${colours.method(one.method)})`);
          return element("div", {}, mark, `${one.name}  ${short(value)}`);
        }), ...(rows.length > 12 ? [element("div", {}, `and ${rows.length - 12} more`)] : []));
        const right = u.cursor.left > u.over.clientWidth / 2;
        tip.style.left = right ? "" : `${u.cursor.left + 14}px`;
        tip.style.right = right ? `${u.over.clientWidth - u.cursor.left + 14}px` : "";
        tip.style.top = `${Math.max(0, Math.min(u.cursor.top - 20, u.over.clientHeight - tip.offsetHeight))}px`;
      },
    },
  };
}

function plot(place, options, data) {
  const size = () => ({ width: Math.max(place.clientWidth, 120), height: place.clientHeight });
  const u = new uPlot({
    ...options, ...size(), legend: { show: false }, padding: [10, 14, 0, 0],
    cursor: { points: { size: 6 }, drag: { x: true, y: false }, y: false },
  }, data, place);
  new ResizeObserver(() => u.setSize(size())).observe(place);
  return u;
}

function showMethods(u, entries, hidden) {
  u.batch(() => entries.forEach(one => u.setSeries(one.series, { show: !hidden.has(one.method) })));
}

// The mean of a line within a reach on either side; less near its ends, so that these stay where they are.
function smoothed(x, values, reach) {
  const known = x.map((_, at) => at).filter(at => values[at] != null), means = values.slice(), area = [0];
  const end = known.length - 1, at = place => x[known[place]], height = place => values[known[place]];
  for (let place = 0; place < end; place++) area.push(area[place] + (at(place + 1) - at(place)) * (height(place) + height(place + 1)) / 2);
  const below = where => { // the area up to there
    const place = Math.max(0, Math.min(countUpTo(where, known.length, at) - 1, end - 1)), part = where - at(place);
    const slope = (height(place + 1) - height(place)) / (at(place + 1) - at(place));
    return area[place] + part * (height(place) + slope * part / 2);
  };
  known.forEach((index, place) => {
    const half = Math.min(reach, at(place) - at(0), at(end) - at(place));
    if (half > 0) means[index] = (below(at(place) + half) - below(at(place) - half)) / (2 * half);
  });
  return means;
}

// A chart is told which methods are hidden, and to redraw itself when colours change.
function curveChart(place, league, chosen, smooth) {
  const curve = league.curves[chosen], data = [curve.x], series = [{}], bands = [], entries = [], all = [];
  curve.series.forEach(([mean, low, high], method) => {
    const stroke = () => colours.get(colours.method(method)), first = data.length;
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    data.push(...[high, low, mean].map(values => smooth ? smoothed(curve.x, values, 0.02 * curve.common) : values));
    const points = { show: mean.filter(value => value != null).length <= 12, size: 5 };
    series.push(edge, edge, { stroke, width: 2, dash: colours.dash(method), points });
    bands.push({ series: [first, first + 1], fill: () => colours.faint(colours.method(method), 0.16) });
    entries.push({ series: first + 2, method, name: league.methods[method] });
    [0, 1, 2].forEach(step => all.push({ series: first + step, method, edge: step < 2 }));
  });
  const targets = u => {
    const { ctx } = u, { left, width } = u.bbox;
    ctx.save();
    ctx.setLineDash([2, 4]);
    ctx.strokeStyle = ctx.fillStyle = colours.get("muted");
    ctx.font = `${11 * devicePixelRatio}px system-ui`;
    ctx.textAlign = "left";
    for (const target of league.targets) {
      if (target < u.scales.y.min || target > u.scales.y.max) continue;
      const y = u.valToPos(target, "y", true);
      ctx.beginPath(); ctx.moveTo(left, y); ctx.lineTo(left + width, y); ctx.stroke();
      ctx.fillText(String(target), left + 5, y - 4);
    }
    ctx.restore();
  };
  const u = plot(place, {
    series, bands, scales: { x: { time: false }, y: league.metric.share ? { range: (_, low, high) => [Math.max(0, low - 0.02), Math.min(1, high + 0.03)] } : {} },
    axes: [axis(curve.label, 30), axis(`test ${league.metric.name}`, 46)],
    plugins: [hover([curve.label], entries)], hooks: { drawAxes: [targets] },
  }, data);
  // One slow method would press all others into a corner.
  const cut = curve.x.at(-1) > 1.2 * curve.common ? curve.common : 0;
  if (cut) u.setScale("x", { min: 0, max: cut });
  const crowded = hidden => league.methods.length - hidden.size > 6;
  const show = hidden => {
    showMethods(u, all, hidden);
    u.batch(() => all.filter(one => one.edge).forEach(one => u.setSeries(one.series, { show: !hidden.has(one.method) && !crowded(hidden) })));
  };
  return { u, cut, show, redraw: () => u.redraw(false) };
}

function distributionChart(place, league, chart) {
  const entries = chart.lines.map((line, at) => ({
    series: at + 1, method: line.method, name: league.methods[line.method] + (line.style ? " (first third)" : ""),
  }));
  const series = chart.lines.map(line => {
    const name = colours.method(line.method);
    return {
      stroke: () => colours.get(name), width: line.style ? 1.5 : 2, dash: line.style ? [4, 4] : colours.dash(line.method),
      fill: chart.steps && !line.style ? () => colours.faint(name, 0.12) : undefined,
      paths: chart.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: !chart.steps, size: 5 }, spanGaps: !chart.steps,
    };
  });
  const u = plot(place, {
    series: [{}, ...series], scales: { x: { time: false } },
    axes: [axis(chart.labels[0], 28), axis(chart.labels[1], 52)], plugins: [hover(chart.labels, entries)],
  }, [chart.x, ...chart.lines.map(line => chart.steps ? [...line.y, line.y.at(-1)] : line.y)]);
  return { u, show: hidden => showMethods(u, entries, hidden), redraw: () => u.redraw(false) };
}
