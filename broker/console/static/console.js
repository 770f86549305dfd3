// The console's script: times in the viewer's zone, live figures while the page can be seen, and the
// search box. Each page is whole without it.
"use strict";

const INTERVAL_MS = 2000;
const POINTS_MAX = 700;

function sizeText(size) {
  for (const unit of ["bytes", "KiB", "MiB", "GiB"]) {
    if (size < 1024) return (unit === "bytes" ? size.toFixed(0) : size.toFixed(1)) + " " + unit;
    size /= 1024;
  }
  return size.toFixed(1) + " TiB";
}

function countText(count) {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

// As the page writes times: the same width, so nothing moves.
function timeText(moment) {
  const two = (number) => String(number).padStart(2, "0");
  return moment.getFullYear() + "-" + two(moment.getMonth() + 1) + "-" + two(moment.getDate()) + " " +
    two(moment.getHours()) + ":" + two(moment.getMinutes()) + ":" + two(moment.getSeconds()) + "." +
    String(moment.getMilliseconds()).padStart(3, "0");
}

function localize(place) {
  for (const element of place.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    if (!Number.isNaN(moment.getTime())) element.textContent = timeText(moment);
  }
}

// A field with a time in UTC takes one of the viewer's zone, whose name is beside it, and sends UTC.
function localizeField(label) {
  const field = label.parentElement.querySelector("input");
  const sent = document.createElement("input");
  sent.type = "hidden";
  sent.name = field.name;
  field.removeAttribute("name");
  field.after(sent);
  label.textContent = ZONE;
  if (field.value) field.value = timeText(new Date(field.value + "Z")).slice(0, 19).replace(" ", "T");
  field.form.addEventListener("submit", () => {
    sent.value = field.value ? new Date(field.value).toISOString().slice(0, 19) : "";
  });
}

function timeElement(milliseconds) {
  const element = document.createElement("time");
  const moment = new Date(milliseconds);
  element.dateTime = moment.toISOString();
  element.title = moment.toISOString().slice(0, 23).replace("T", " ") + " UTC";
  element.textContent = timeText(moment);
  return element;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function chart(place, labels, colors, text, least) {
  const data = [[], ...labels.map(() => [])];
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const width = () => Math.max(place.clientWidth - 16, 100);
  const plot = new uPlot({
    width: width(),
    height: 185,
    series: [{ value: (_, one) => (one == null ? "-" : timeText(new Date(one * 1000)).slice(0, 19)) }, ...labels.map((label, n) => ({
      label, stroke: color(colors[n]), width: 2, value: (_, value) => (value == null ? "-" : text(value)),
    }))],
    axes: [{ ...axis, space: 90, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600], values: (_, times) => times.map((one) => timeText(new Date(one * 1000)).slice(11, 19)) }, { ...axis, size: 80, values: (_, values) => values.map(text) }],
    scales: { y: { range: (_, low, high) => [0, Math.max(high, least)] } },
  }, data, place);
  new ResizeObserver(() => plot.setSize({ width: width(), height: 185 })).observe(place);
  return (points) => {
    for (const [timeMs, ...values] of points) {
      data[0].push(timeMs / 1000);
      values.forEach((value, n) => data[n + 1].push(value));
    }
    data.forEach((column) => column.splice(0, column.length - POINTS_MAX));
    plot.setData(data);
  };
}

function cells(row, values) {
  values.forEach(([text, isNumber, link, badge]) => {
    const cell = document.createElement("td");
    if (isNumber) cell.className = "number";
    if (link) {
      const anchor = document.createElement("a");
      anchor.href = link;
      anchor.textContent = text;
      cell.append(anchor);
    } else if (badge) {
      const mark = document.createElement("span");
      mark.className = "badge " + badge;
      mark.textContent = text;
      cell.append(mark);
    } else {
      cell.textContent = text;
    }
    row.append(cell);
  });
}

function fill(body, rows, nothing) {
  const made = rows.map((values) => {
    const row = document.createElement("tr");
    cells(row, values);
    return row;
  });
  if (!made.length) {
    const row = document.createElement("tr");
    cells(row, [[nothing, false]]);
    row.firstChild.colSpan = body.parentElement.tHead.rows[0].cells.length;
    made.push(row);
  }
  body.replaceChildren(...made);
}

function follow(source, show, lost) {
  let isUnderWay = false;
  async function look() {
    if (document.hidden || isUnderWay) return;
    isUnderWay = true;
    try {
      const response = await fetch(source);
      if (!response.ok) throw new Error(response.statusText);
      show(await response.json());
    } catch (error) {
      lost(error);
    } finally {
      isUnderWay = false;
    }
  }
  look();
  setInterval(look, INTERVAL_MS);
}

const LATENCY_POLLS = 10;
const polls = [];

// The upper bound of the bucket in which a share of the operations since the first kept poll lies.
function within(bounds, counts, share) {
  const total = counts.reduce((sum, one) => sum + one, 0);
  let seen = 0;
  for (let n = 0; n < counts.length; n += 1) {
    seen += counts[n];
    if (total && seen >= total * share) {
      return n < bounds.length ? bounds[n] * 1000 + " ms" : "more than " + bounds[n - 1] + " s";
    }
  }
  return null;
}

function showLatencies(found) {
  polls.push(found.counts);
  if (polls.length > LATENCY_POLLS) polls.shift();
  for (const name of ["produce", "fetch", "put"]) {
    const now = found.counts[name] || [];
    const first = polls[0][name] || now.map(() => 0);
    const counts = now.map((one, n) => one - first[n]);
    const half = within(found.bounds, counts, 0.5);
    document.getElementById("latency-" + name).textContent =
      half == null ? "none" : half + ", " + within(found.bounds, counts, 0.99);
  }
}

function showCost(found) {
  const dollars = found.dollars_an_hour;
  document.getElementById("cost-hour").textContent = "$" + dollars.toFixed(4);
  document.getElementById("cost-tb").textContent =
    found.bytes_in < 1024 ? "-" : "$" + (dollars / (found.bytes_in * 3600) * 1e12).toFixed(2);
}

const NODE_STATES = { live: "good", silent: "bad", fenced: "bad", gone: "faint" };

function watchCluster(place) {
  const add = chart(place, ["in", "out"], ["--in", "--out"], sizeText, 10240);
  const show = (found) => {
    add([[found.time_ms, found.bytes_in, found.bytes_out]]);
    document.getElementById("bytes-in").textContent = sizeText(found.bytes_in) + "/s";
    document.getElementById("bytes-out").textContent = sizeText(found.bytes_out) + "/s";
    showLatencies(found.latencies);
    showCost(found);
    fill(document.getElementById("node-rows"), found.nodes.map((node) => [
      [node.node + (node.controller ? " (controller)" : ""), false], [node.state, false, null, NODE_STATES[node.state] || "plain"],
      [node.address, false], [node.rack || "-", false], [node.leads, true],
      [node.bytes_in == null ? "-" : sizeText(node.bytes_in), true],
      [node.bytes_out == null ? "-" : sizeText(node.bytes_out), true],
      [node.cpu == null ? "-" : Math.round(node.cpu * 100) + " %", true],
    ]), "No node is registered.");
    fill(document.getElementById("busiest-rows"), found.busiest.map((one) => [
      [one.topic + "-" + one.partition, false, "/console/topics/" + one.topic + "/partitions/" + one.partition], [sizeText(one.rate), true],
    ]), "No traffic.");
  };
  follow("/console/live", show, (error) => {
    document.getElementById("bytes-in").textContent = "not known: " + error.message;
  });
}

function watchLag(place) {
  const add = chart(place, ["lag"], ["--in"], countText, 10);
  const now = document.getElementById("lag-now");
  const lost = (error) => { now.textContent = "not known: " + error.message; };
  fetch(place.dataset.source + "&history=1").then(async (response) => {
    if (!response.ok) throw new Error(response.statusText);
    add((await response.json()).history);
  }).catch(lost).finally(() => follow(place.dataset.source, (found) => {
    add([[found.time_ms, found.lag]]);
    now.textContent = countText(found.lag);
  }, lost));
}

const SHOWN = {
  last_commit_ms: timeElement,
  seconds_behind: (value) => value.toFixed(0),
  freshness_seconds: (value) => value.toFixed(0),
  records_behind: countText,
  dead_letters: countText,
};

function showTables(place, tables) {
  const byKey = new Map(tables.map((one) => [one.topic + "/" + (one.name || one.topic), { ...one, problem: one.error || one.late || "" }]));
  for (const row of document.querySelectorAll("tr[data-table]")) {
    const found = byKey.get(row.dataset.table);
    if (!found) continue;
    for (const cell of row.querySelectorAll("[data-field]")) {
      const value = found[cell.dataset.field];
      if (value != null) cell.replaceChildren((SHOWN[cell.dataset.field] || String)(value));
    }
  }
  place.textContent = "";
}

async function lookAtTables(place) {
  place.textContent = "Looking at the tables …";
  try {
    const response = await fetch(place.dataset.source);
    const found = await response.json();
    if (!response.ok) throw new Error(found.problem || response.statusText);
    showTables(place, found.tables);
  } catch (error) {
    place.textContent = "The tables cannot be looked at: " + error.message;
  }
}

// Parts of a page that are fetched again with it; one that has the focus stays as it is.
function refresh(part) {
  setInterval(async () => {
    if (document.hidden || part.contains(document.activeElement)) return;
    try {
      const response = await fetch(location.href);
      if (!response.ok) return;
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById(part.id);
      if (!fresh) return;
      const left = part.querySelector(".wide") ? part.querySelector(".wide").scrollLeft : 0;
      localize(fresh);
      part.replaceChildren(...fresh.childNodes);
      if (part.querySelector(".wide")) part.querySelector(".wide").scrollLeft = left;
    } catch (error) {
      // The node does not respond: what is shown stays, and the next look may find it.
    }
  }, Number(part.dataset.refresh));
}

function suggest(input, list) {
  let wanted = "";
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    wanted = input.value.trim();
    if (wanted.length < 2) return;
    timer = setTimeout(async () => {
      const requested = wanted;
      try {
        const response = await fetch(list.dataset.source + "?q=" + encodeURIComponent(requested));
        if (!response.ok || requested !== wanted) return;
        list.replaceChildren(...(await response.json()).topics.map((name) => {
          const option = document.createElement("option");
          option.value = name;
          return option;
        }));
      } catch (error) {
        // Suggestions are a help; the search works without.
      }
    }, 120);
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      input.focus();
    }
  });
}

localize(document);
const fieldZone = document.getElementById("time-zone");
if (fieldZone) localizeField(fieldZone);
const zone = document.getElementById("zone");
if (zone && ZONE !== "UTC" && ZONE !== "Etc/UTC") zone.textContent = "Times are those of " + ZONE + "; UTC is shown by pointing at one.";
suggest(document.getElementById("find"), document.getElementById("suggestions"));
document.querySelectorAll("[data-refresh]").forEach(refresh);
const traffic = document.getElementById("traffic-chart");
const lag = document.getElementById("lag-chart");
if (traffic) watchCluster(traffic);
if (lag) watchLag(lag);
const tables = document.getElementById("table-status");
if (tables) lookAtTables(tables);
if (document.getElementById("running")) setTimeout(() => location.reload(), INTERVAL_MS);
