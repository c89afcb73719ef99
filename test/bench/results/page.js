// Draws the charts of the page. `parts` holds the results, `units` the units by the end of a name.
"use strict";

const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const sideColor = i => color("--side" + i % 6);
// Lines of one side have its color and differ in style.
const styles = [{width: 2}, {width: 1.5, dash: [7, 3]}, {width: 1.5, dash: [2, 3]}, {width: 1.5, dash: [9, 3, 2, 3]}];
const lineStyle = k => styles[k % styles.length];

function short(v) {
  if (v == null) return "–";
  for (const [size, suffix] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(v) >= size) return +(v / (suffix === "k" ? 1e3 : size)).toPrecision(3) + suffix;
  }
  return String(+v.toPrecision(3));
}

function draw(card, title, unit, options, data) {
  const heading = document.createElement("h3");
  const small = document.createElement("small");
  heading.textContent = title + " ";
  small.textContent = unit;
  heading.append(small);
  card.append(heading);
  const axis = {stroke: color("--quiet"), grid: {stroke: color("--line"), width: 1}, ticks: {stroke: color("--line"), width: 1}};
  options.axes = [{...axis, ...options.x}, {...axis, size: 56, values: (u, splits) => splits.map(v => v == null ? "" : short(v))}];
  const border = dash => !dash ? "solid" : dash[0] < 5 ? "dotted" : "dashed";
  options.legend = {markers: {width: 2, dash: (u, i) => border(u.series[i].dash)}};
  new uPlot({...options, width: card.clientWidth - 32, height: 240}, data, card);
}

// chartsOf returns the charts of a part over time: the known ones, then one for each unit of the other series.
function chartsOf(part) {
  const names = new Set(part.sides.flatMap(side => side.rounds.flatMap(samples => (samples ?? []).flatMap(s => Object.keys(s.values)))));
  const latency = of => ({unit: "ms", log: true, series: [of + "_p99_ms", of + "_p50_ms", of + "_max_ms"], labels: ["p99", "p50", "max"]});
  const all = [
    {title: "Publish latency", ...latency("publish")},
    {title: "End-to-end latency", ...latency("e2e")},
    {title: "Rate", unit: "msg/s", series: ["publish_msg_s", "consume_msg_s"], labels: ["published", "received"]},
    {title: "Backlog", unit: "messages", series: ["backlog_messages"], labels: [""]},
    {title: "CPU of the load process", unit: "cores", series: ["cpu_cores"], labels: [""]},
    {title: "Memory of the load process", unit: "MiB", series: ["memory_mib"], labels: [""]},
  ].filter(chart => names.has(chart.series[0]));
  const known = all.flatMap(chart => chart.series), others = {};
  for (const name of [...names].sort()) {
    if (known.includes(name) || /^(publish|e2e)_.*_ms$/.test(name)) continue; // other percentiles of the latencies
    const [end, unit] = units.find(([end]) => name.endsWith(end)) ?? ["", ""];
    const chart = others[unit] ??= {title: "Other series", unit, series: [], labels: []};
    chart.series.push(name);
    chart.labels.push(name.slice(0, name.length - end.length).replaceAll("_", " "));
  }
  for (const unit of Object.keys(others).sort()) {
    const chart = others[unit], [label] = chart.labels;
    all.push(chart.series.length > 1 ? chart : {...chart, title: label[0].toUpperCase() + label.slice(1), labels: [""]});
  }
  return all;
}

const second = sample => Math.round(sample.at);

// phases marks where the phases begin: of each side, or once if they are the same.
function phases(part, round) {
  const all = part.sides.map(side => (side.rounds[round] ?? []).filter((s, i, samples) => s.phase !== samples[i - 1]?.phase)
    .map(s => ({at: Math.max(second(s) - 1, 0), name: s.phase})));
  const same = all.every(p => JSON.stringify(p) === JSON.stringify(all[0]));
  return u => {
    const ctx = u.ctx, ratio = devicePixelRatio;
    ctx.save();
    ctx.font = 11 * ratio + "px system-ui, sans-serif";
    ctx.textAlign = "left";
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    (same ? all.slice(0, 1) : all).forEach((of, i) => {
      ctx.strokeStyle = ctx.fillStyle = same ? color("--quiet") : sideColor(i);
      of.forEach((phase, n) => {
        const x = u.valToPos(phase.at, "x", true);
        const next = n + 1 < of.length ? u.valToPos(of[n + 1].at, "x", true) : Infinity;
        ctx.beginPath();
        ctx.moveTo(x, u.bbox.top);
        ctx.lineTo(x, u.bbox.top + u.bbox.height);
        ctx.stroke();
        if (x + ctx.measureText(phase.name).width + 4 * ratio > next) return; // no space for the name
        ctx.fillText(phase.name, x + 3 * ratio, u.bbox.top + (11 + 12 * i) * ratio);
      });
    });
    ctx.restore();
  };
}

function overTime(card, part, number, round, chart) {
  const end = Math.max(0, ...part.sides.flatMap(side => (side.rounds[round] ?? []).map(second)));
  const data = [Array.from({length: end + 1}, (_, i) => i)];
  const series = [{label: "time", value: (u, v) => v == null ? "–" : v + " s"}];
  part.sides.forEach((side, i) => chart.series.forEach((name, k) => {
    const samples = (side.rounds[round] ?? []).filter(s => name in s.values);
    if (!samples.length) return;
    const column = new Array(end + 1).fill(null);
    // A logarithmic axis has no place for 0.
    samples.forEach(s => { column[second(s)] = chart.log && s.values[name] <= 0 ? null : s.values[name]; });
    data.push(column);
    series.push({label: (side.name + " " + chart.labels[k]).trim(), stroke: sideColor(i), points: {show: false}, value: (u, v) => short(v), ...lineStyle(k)});
  }));
  draw(card, chart.title, chart.unit, {
    series,
    scales: {x: {time: false}, y: chart.log ? {distr: 3} : {range: {min: {pad: 0.1, soft: 0, mode: 1}, max: {pad: 0.1}}}},
    cursor: {sync: {key: "part" + number}},
    hooks: {draw: [phases(part, round)]},
    x: {values: (u, splits) => splits.map(v => v + " s")},
  }, data);
}

// byPercentile shows the latencies of all rounds, with a logarithmic distance to 100 %.
function byPercentile(card, part) {
  const top = 1e6; // the place of the maximum
  const lines = part.sides.flatMap((side, i) => Object.keys(side.percentiles ?? {}).sort().reverse().map((name, k) => ({side, i, name, k})));
  const place = p => p.percent === 100 ? top : 1 / (1 - p.percent / 100);
  const points = lines.length ? lines[0].side.percentiles[lines[0].name] : [];
  const named = {2: "50 %", 10: "90 %", 100: "99 %", 1000: "99.9 %", 10000: "99.99 %", 1e5: "99.999 %", [top]: "max"};
  draw(card, "Latency by percentile", "ms, all rounds", {
    series: [{label: "percentile", value: (u, v, s, n) => n == null ? "–" : points[n].percent === 100 ? "max" : points[n].percent + " %"},
      ...lines.map(l => ({label: l.side.name + " " + l.name.replace("e2e", "end-to-end"), stroke: sideColor(l.i), points: {show: false},
        value: (u, v) => short(v), ...lineStyle(l.k)}))],
    scales: {x: {time: false, distr: 3, range: [1, top]}, y: {distr: 3}},
    x: {splits: () => Object.keys(named).map(Number), values: (u, splits) => splits.map(v => named[v]), filter: (u, splits) => splits, rotate: -30, size: 56},
  }, [points.map(place), ...lines.map(l => l.side.percentiles[l.name].map(p => p.ms > 0 ? p.ms : null))]);
}

function drawPart(number) {
  const part = parts[number], round = +document.querySelector(`select[data-part="${number}"]`).value || 0;
  const into = document.querySelector(`.charts[data-part="${number}"]`);
  into.replaceChildren();
  const card = () => into.appendChild(Object.assign(document.createElement("div"), {className: "card"}));
  const hasPercentiles = part.sides.some(s => Object.keys(s.percentiles ?? {}).length);
  const known = chartsOf(part), charts = known.map(chart => c => overTime(c, part, number, round, chart));
  if (hasPercentiles) charts.splice(known.filter(chart => chart.log).length, 0, c => byPercentile(c, part));
  // All cards first: their number decides how wide they are.
  const cards = charts.map(card);
  charts.forEach((chart, i) => chart(cards[i]));
}

function drawAll() { parts.forEach((_, i) => drawPart(i)); }

document.querySelectorAll("select[data-part]").forEach(select => {
  const rounds = Math.max(0, ...parts[select.dataset.part].sides.map(s => s.rounds?.length ?? 0));
  for (let i = 0; i < rounds; i++) select.add(new Option(i + 1, i));
  select.parentElement.hidden = rounds < 2;
  select.addEventListener("change", () => drawPart(+select.dataset.part));
});
let drawnWidth = innerWidth;
addEventListener("resize", () => { if (innerWidth !== drawnWidth) { drawnWidth = innerWidth; drawAll(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
