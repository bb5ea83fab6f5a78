// The dashboard: statistics arrive as server-sent events; messages are fetched on request.
// Data from a store is never parsed as HTML: it only goes into text nodes.

const TOKEN = document.querySelector('meta[name="token"]').content;
const SVG = "http://www.w3.org/2000/svg";
const TURNS = [
  { name: "1m", label: "1 min", said: "minute", ticks: 12, tickMs: 5_000, hasSeconds: true },
  { name: "1h", label: "1 h", said: "hour", ticks: 12, tickMs: 300_000 },
  { name: "6h", label: "6 h", said: "6 hours", ticks: 12, tickMs: 1_800_000 },
  { name: "24h", label: "24 h", said: "24 hours", ticks: 12, tickMs: 7_200_000 },
];
const SHOWN = 100; // rows of a list

let about = null;
let now = null; // the last statistics
let nowAt = 0; // when they arrived, by this browser's clock
let turn = TURNS.find((one) => one.name === location.hash.slice(1)) ?? TURNS[1];
let topic = "";
let events = null;
let looked = null; // the request behind the card of messages, to repeat it

const $ = (id) => document.getElementById(id);

// --- elements -------------------------------------------------------------------------------

function make(tag, given = {}, ...inner) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) one.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) one.setAttribute(name, value);
  }
  one.append(...inner.filter((part) => part !== null && part !== undefined));
  return one;
}

function draw(tag, given = {}, text = null) {
  const one = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) one.setAttribute(name, value);
  if (text !== null) one.textContent = text;
  return one;
}

function say(id, text) {
  const one = typeof id === "string" ? $(id) : id;
  if (one.textContent !== text) one.textContent = text;
}

// --- texts ----------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

const count = (n) => (n === null || n === undefined ? "–" : n < 1e9 ? whole.format(n) : short.format(n));
const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;
const rate = (n) => count(n >= 10 ? Math.round(n) : Math.round(n * 10) / 10);
const two = (n) => String(n).padStart(2, "0");

function clock(ms, seconds = true, thousandths = false) {
  const at = new Date(ms);
  let text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (seconds) text += `:${two(at.getSeconds())}`;
  if (thousandths) text += `.${String(at.getMilliseconds()).padStart(3, "0")}`;
  return text;
}

function day(ms) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return "";
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

function moment(ms) {
  if (Number.isNaN(new Date(ms).getTime())) return `${ms} ms`;
  const text = clock(ms, true, true);
  return day(ms) === day(serverNow()) ? text : `${day(ms)} ${text}`;
}

function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const parts = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
  const at = parts.findIndex(([, size]) => ms >= size);
  const [name, size] = parts[at];
  const big = Math.floor(ms / size);
  if (at + 1 === parts.length || big >= 100) return `${big} ${name}`;
  const [below, unit] = parts[at + 1];
  const rest = Math.floor((ms % size) / unit);
  return rest ? `${big} ${name} ${rest} ${below}` : `${big} ${name}`;
}

function away(ms) {
  const ahead = ms - serverNow();
  return ahead >= 0 ? `in ${span(ahead)}` : `${span(-ahead)} ago`;
}

function bytes(n) {
  if (n < 1024) return `${n} B`;
  const names = ["KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(names.length - 1, Math.floor(Math.log2(n) / 10) - 1);
  return `${(n / 1024 ** (at + 1)).toPrecision(3)} ${names[at]}`;
}

const late = (ms) => (ms < 1000 ? `${+ms.toFixed(1)} ms` : span(ms));

// --- the connection -------------------------------------------------------------------------

function serverNow() {
  if (now === null) return Date.now();
  return now.now_ms + (about.clock_runs ? performance.now() - nowAt : 0);
}

function listen() {
  events?.close();
  const asked = new URLSearchParams({ token: TOKEN, turn: turn.name });
  if (topic) asked.set("topic", topic);
  const mine = new EventSource(`events?${asked}`);
  events = mine;
  mine.addEventListener("about", (event) => {
    about = JSON.parse(event.data);
    showAbout();
  });
  mine.addEventListener("now", (event) => {
    now = JSON.parse(event.data);
    nowAt = performance.now();
    link("live", about.clock_runs ? "live" : "live, manual clock");
    $("banner").hidden = true;
    showNow();
  });
  mine.addEventListener("failed", (event) => {
    const { what } = JSON.parse(event.data);
    say("banner", `The store failed: ${what}`);
    $("banner").hidden = false;
    link("lost", "store lost");
  });
  mine.addEventListener("error", () => {
    if (events !== mine) return;
    if ($("banner").hidden) link("lost", "reconnecting");
    if (mine.readyState === EventSource.CLOSED) {
      link("lost", "rejected");
      say("banner", "The server rejects this address. If it was restarted, open the address that it printed.");
      $("banner").hidden = false;
      setTimeout(() => events === mine && listen(), 2000);
    }
  });
}

function link(state, text) {
  $("link").dataset.state = state;
  say("link-text", text);
}

async function ask(path, given, post = null) {
  const url = given ? `${path}?${new URLSearchParams(given)}` : path;
  const how = { headers: { Authorization: `Bearer ${TOKEN}` }, cache: "no-store" };
  if (post !== null) {
    how.method = "POST";
    how.headers["Content-Type"] = "application/json";
    how.body = JSON.stringify(post);
  }
  let answer;
  try {
    answer = await fetch(url, how);
  } catch {
    throw new Error("The server does not answer. Is the program still running?");
  }
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(told?.what ?? `The server rejected the request (${answer.status}).`);
  return told;
}

// --- constant facts -------------------------------------------------------------------------

function showAbout() {
  say("path", about.path);
  document.title = `${about.path.split("/").filter(Boolean).pop() ?? "store"} · timerstore`;
  showChips();
  $("search").hidden = !about.can_search;
  $("topic-pick").hidden = !about.can_search;
  document.body.classList.toggle("runs", about.clock_runs);
  showFoot();
  if (looked === null) showHint();
}

function showChips() {
  const chips = [];
  if (about.shards !== null) chips.push(["", plural(about.shards, "shard")]);
  if (about.mode === "snapshot" && now !== null) {
    chips.push(["warn", now.holder === null ? "not open: nothing is delivered" : now.holder ? `snapshot; owner is process ${now.holder}` : "snapshot"]);
  }
  if (about.mode === "open" && about.read_only) chips.push(["warn", "read-only"]);
  if (!about.clock_runs) chips.push(["", "manual clock"]);
  const told = chips.map(([, text]) => text).join();
  if ($("chips").dataset.told === told) return;
  $("chips").dataset.told = told;
  $("chips").replaceChildren(...chips.map(([kind, text]) => make("span", { class: `chip ${kind}` }, text)));
}

function showFoot() {
  const power = about.read_only ? "see this store" : "see this store and cancel pending messages";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const log = now === null ? "" : `Log size: ${bytes(now.log_bytes)}. `;
  say("foot", `${log}Times are in this browser's zone (${zone}). Anyone with this page's address can ${power}.`);
}

// --- statistics -----------------------------------------------------------------------------

function showNow() {
  say("pending", count(now.pending));
  say("late", count(now.late));
  $("late-tile").classList.toggle("warn", now.late > 0);
  say("late-note", now.late === 0 ? "all on time" : now.behind ? `by ${span(now.behind.delivery_lag_ms)}` : "as of the last checkpoint");
  say("delivered", rate(now.delivered_per_s));
  say("pending-note", `put ${rate(now.put_per_s)} /s`);
  showSpark(now.history);
  showRing();
  showTopics();
  showGroups();
  showLateness();
  showBehind();
  showFoot();
  showChips();
  followShown();
}

function showSpark(history) {
  const spark = $("spark");
  const most = Math.max(...history, 0);
  const bars = [draw("line", { x1: 0, x2: 240, y1: 43.5, y2: 43.5 })];
  const first = 60 - history.length;
  history.forEach((value, k) => {
    if (value <= 0) return;
    const high = Math.max(1.5, (value / most) * 42);
    bars.push(draw("rect", { x: (first + k) * 4, y: 43 - high, width: 3, height: high }));
  });
  spark.replaceChildren(...bars);
  say("spark-note", most > 0 ? `peak ${rate(most)} /s` : "no deliveries");
}

function showTopics() {
  const rows = now.topics;
  $("topics-empty").hidden = rows.length > 0;
  const most = Math.max(1, ...rows.map(([, n]) => n));
  const names = rows.map(([name]) => name);
  const body = $("topics");
  // Keep the rows of unchanged topics, so that a pressed button does not disappear.
  const shown = [...body.querySelectorAll("tr[data-name]")].map((one) => one.dataset.name);
  if (names.join() !== shown.join()) {
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.topic : null;
    body.replaceChildren(...names.map(topicRow));
    if (focused) [...body.querySelectorAll("button")].find((one) => one.dataset.topic === focused)?.focus();
  }
  rows.forEach(([, n], k) => {
    const row = body.children[k];
    row.className = n ? "" : "none";
    say(row.children[1], count(n));
    row.querySelector("rect:last-child").setAttribute("width", Math.max(n ? 1 : 0, (n / most) * 100));
  });
  body.querySelector(".more")?.remove();
  if (now.more_topics) {
    body.append(make("tr", { class: "none more" }, make("td", {}, `${plural(now.more_topics, "topic")} more`),
      make("td", { class: "right" }, count(now.more_pending)), make("td")));
  }
  showPick(names);
}

function showGroups() {
  const rows = now.groups ?? [];
  $("groups-card").hidden = rows.length === 0;
  $("groups").replaceChildren(...rows.map(([topic, group, ready, leased, backoff, dead, oldest]) => make("tr", {},
    make("td", {}, `${topic} → ${group}`),
    ...[ready, leased, backoff, dead].map((n) => make("td", { class: "right" }, count(n))),
    make("td", { class: "right" }, ready ? span(oldest) : "–"))));
  if (now.more_groups) {
    $("groups").append(make("tr", { class: "none more" }, make("td", { colspan: 6 }, `${plural(now.more_groups, "group")} more`)));
  }
}

function topicRow(name) {
  const shown = about.can_search
    ? make("button", { type: "button", class: "name", title: "Show on the ring", "data-topic": name }, name)
    : name;
  const bar = draw("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  bar.append(draw("rect", { width: 100, height: 8 }), draw("rect", { height: 8 }));
  return make("tr", { "data-name": name }, make("td", {}, shown), make("td", { class: "right" }), make("td", { class: "share" }, bar));
}

function showPick(shown) {
  const select = $("topic");
  const names = [...new Set(topic ? [...shown, topic] : shown)].sort();
  const options = [...select.options].slice(1).map((one) => one.value);
  if (names.join() === options.join()) return;
  select.replaceChildren(make("option", { value: "" }, "all"), ...names.map((name) => make("option", { value: name }, name)));
  select.value = topic;
}

function showLateness() {
  const { number, p50, p99, worst, counts } = now.lateness;
  const told = (ms) => (!number ? "–" : ms === null ? "over 1 h" : late(ms));
  say("p50", told(p50));
  say("p99", told(p99));
  say("worst", told(worst));
  say("lateness-note", number ? `of ${plural(number, "delivery").replace(/ys$/, "ies")} in the last minute` : "no deliveries in the last minute");
  const bounds = [...about.late_bounds_ms.map((ms) => (ms === 1 ? "1 ms" : ms < 1000 ? `${ms}` : ms < 60_000 ? `${ms / 1000}s` : ms < 3_600_000 ? `${ms / 60_000}m` : "1h")), ">1h"];
  const most = Math.max(1, ...counts);
  const parts = [draw("line", { class: "floor", x1: 0, x2: 480, y1: 106.5, y2: 106.5 })];
  bounds.forEach((text, k) => {
    const x = k * 30 + 15;
    parts.push(draw("text", { x, y: 123 }, text));
    const n = counts[k] ?? 0;
    if (!n) return;
    const high = Math.max(2, (n / most) * 84);
    parts.push(draw("rect", { class: k < 9 ? "bar" : "bar late", x: x - 11, y: 106 - high, width: 22, height: high, rx: 2 }));
    parts.push(draw("text", { class: "count", x, y: 101 - high }, short.format(n)));
  });
  $("lateness-bars").replaceChildren(...parts);
}

function showBehind() {
  const told = now.behind;
  $("engine").hidden = told === null;
  if (told === null) return;
  const withTime = (n, ms) => (n && ms > 0 ? `${count(n)} · ${span(ms)}` : count(n));
  const rows = [
    ["Due, not delivered", withTime(told.delivery_lag_messages, told.delivery_lag_ms), told.delivery_lag_ms > 1000],
    ["Put, not on the wheel", withTime(told.enqueue_lag_messages, told.enqueue_lag_ms), told.enqueue_lag_ms > 1000],
    ["Log not dispatched", bytes(told.dispatch_lag_bytes), false],
    ["Waiting for their topic's rate limit", count(told.paced_messages), false],
    ["Retried steps", count(told.service_retries), told.service_retries > 0],
    ["Removed before a group read them", count(told.retention_unconsumed_messages), told.retention_unconsumed_messages > 0],
  ];
  $("behind").replaceChildren(...rows.map(([name, text, isBad]) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: isBad ? "warn" : "" }, text))));
}

// --- the ring -------------------------------------------------------------------------------
// Places have fixed positions on the ring; the ring is rotated so that the current time is at the top.

const MID = 220, INNER = 132, FLOOR = 142, OUTER = 192, EDGE = 197, TIMES = 215;
let ring = null;

function at(angle, radius) {
  const turned = ((angle - 90) * Math.PI) / 180;
  return `${(MID + radius * Math.cos(turned)).toFixed(2)} ${(MID + radius * Math.sin(turned)).toFixed(2)}`;
}

function sector(from, to, low, high) {
  return `M${at(from, low)}L${at(from, high)}A${high} ${high} 0 0 1 ${at(to, high)}L${at(to, low)}A${low} ${low} 0 0 0 ${at(from, low)}Z`;
}

function buildRing(unit, places) {
  const span = unit * places;
  const turning = draw("g", { class: "turning" });
  const step = 360 / places;
  ring = { unit, places, span, step, turning, base: Math.floor(now.now_ms / span) * span, places_: [], times: [], chosen: null, over: null };
  for (let k = 0; k < places; k += 1) {
    const from = k * step, to = from + step, gap = Math.min(0.7, step / 6);
    const place = draw("g", { class: "place", role: "button", tabindex: "-1" });
    const hit = draw("path", { class: "hit", d: sector(from, to, INNER, EDGE) });
    const base = draw("path", { class: "base", d: sector(from + gap, to - gap, FLOOR - 5, FLOOR - 2) });
    const bar = draw("path", { class: "bar" });
    place.append(hit, base, bar);
    place.addEventListener("pointerenter", () => over(k));
    place.addEventListener("pointerleave", () => over(null));
    place.addEventListener("focus", () => over(k));
    place.addEventListener("blur", () => over(null));
    place.addEventListener("click", () => choose(k));
    place.addEventListener("keydown", (event) => move(event, k));
    turning.append(place);
    ring.places_.push({ place, bar, from: from + gap, to: to - gap, n: -1, high: -1 });
  }
  const zone = new Date(now.now_ms).getTimezoneOffset() * 60_000;
  for (let k = 0; k < turn.ticks; k += 1) {
    const ms = (((k * turn.tickMs + zone) % span) + span) % span;
    const angle = (ms / span) * 360;
    turning.append(draw("path", { class: "tick", d: `M${at(angle, EDGE - 2)}L${at(angle, EDGE + 2)}` }));
    const [x, y] = at(angle, TIMES).split(" ");
    const text = draw("text", { class: "time", x, y }, "");
    turning.append(text);
    ring.times.push({ text, ms });
  }
  const middle = ["clock:164", "big:226", "small:252", "small:274"].map((one) => {
    const [kind, y] = one.split(":");
    return draw("text", { class: kind, x: MID, y });
  });
  ring.middle = middle;
  const hand = draw("path", { class: "hand", d: `M${at(0, INNER - 3)}L${at(0, EDGE + 3)}` });
  const head = draw("path", { class: "head-of-hand", d: `M${at(0, INNER + 1)}l-6 10l12 0Z` });
  $("ring").replaceChildren(turning, ...middle, hand, head);
}

function showRing() {
  const told = now.ring;
  if (told.turn !== turn.name) return; // of the turn before
  if (ring === null || ring.unit !== told.unit_ms || ring.places !== told.counts.length) {
    buildRing(told.unit_ms, told.counts.length);
  }
  const most = Math.max(0, ...told.counts);
  ring.places_.forEach((one, k) => {
    const { begin, n } = placed(k);
    const part = n ? Math.cbrt(n / most) : 0; // so that 1 is visible next to 10,000
    const high = n ? Math.max(6, part * (OUTER - FLOOR)) : 0;
    if (one.high !== high) {
      one.high = high;
      one.bar.setAttribute("d", n ? sector(one.from, one.to, FLOOR, FLOOR + high) : "");
    }
    one.bar.setAttribute("class", `bar h${Math.ceil(part * 5)}`);
    if (one.begin !== begin) one.place.classList.remove("chosen"); // the place stands for another time now
    if (one.n !== n || one.begin !== begin) {
      one.n = n;
      one.begin = begin;
      one.place.setAttribute("aria-label", `${between(begin)}: ${plural(n, "message")}`);
    }
  });
  say("legend-most", most ? `up to ${count(most)}` : "most");
  const inside = told.counts.reduce((sum, n) => sum + n, 0);
  const all = pendingOf();
  const rest = all === null ? null : Math.max(0, all - inside);
  const summary = [make("b", {}, count(inside)), ` in the next ${turn.said}`];
  if (rest !== null) summary.push(", ", make("b", {}, count(rest)), now.late ? " later or overdue" : " later");
  $("ring-summary").replaceChildren(...summary);
  rove();
  turnRing();
}

function placed(k) {
  const { begin_ms: begin, unit_ms: unit, counts } = now.ring;
  const first = Math.floor(begin / unit);
  const place = (((k - first) % counts.length) + counts.length) % counts.length;
  return { begin: begin + place * unit, n: counts[place], place };
}

function between(begin) {
  const seconds = turn.hasSeconds ?? false;
  return `${clock(begin, seconds)} – ${clock(begin + ring.unit, seconds)}`;
}

function pendingOf() {
  if (!topic) return now.pending;
  return now.topics.find(([name]) => name === topic)?.[1] ?? 0;
}

function turnRing() {
  const ms = serverNow();
  const angle = (-360 * (ms - ring.base)) / ring.span;
  ring.turning.style.transform = `rotate(${angle.toFixed(3)}deg)`;
  for (const { text, ms: mine } of ring.times) {
    const next = ms + ((((ring.base + mine - ms) % ring.span) + ring.span) % ring.span);
    const shown = clock(Math.round(next / 1000) * 1000);
    say(text, turn.hasSeconds ? shown.slice(3) : shown.slice(0, 5));
    text.style.transform = `rotate(${(-angle).toFixed(3)}deg)`;
  }
  showMiddle();
}

function showMiddle() {
  const lines = ring.over === null ? middleOfAll() : middleOf(ring.over);
  lines.forEach((text, k) => say(ring.middle[k], text));
  ring.middle[1].setAttribute("class", lines[1].length > 8 ? "big long" : "big");
}

function middleOfAll() {
  const next = now.next_ms;
  let text = "nothing in the next 24 h";
  if (now.pending === 0 || pendingOf() === 0) text = "";
  else if (next !== null) text = next - serverNow() < 1000 ? "next in less than 1 s" : `next in ${span(Math.floor((next - serverNow()) / 1000) * 1000)}`;
  const name = topic.length > 22 ? `${topic.slice(0, 21)}…` : topic;
  return [clock(serverNow()), count(pendingOf()), topic ? `pending in ${name}` : "pending", text];
}

function middleOf(k) {
  const { begin, n } = placed(k);
  const ahead = begin - serverNow();
  return [ahead > 0 ? `in ${span(ahead)}` : "now", count(n), `due ${between(begin)}`, n && about.can_search ? "press to list" : ""];
}

function over(k) {
  if (ring === null) return;
  ring.over = k;
  showMiddle();
}

/** Exactly one place is reachable with the Tab key: the current time, or the place last moved to. */
function rove() {
  if (ring.places_.some(({ place }) => place === document.activeElement)) return;
  const first = ring.places_.findIndex((_, k) => placed(k).place === 0);
  ring.places_.forEach(({ place }, k) => place.setAttribute("tabindex", k === first ? "0" : "-1"));
}

function move(event, k) {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 5, PageUp: -5 };
  if (event.key === "Enter" || event.key === " ") choose(k);
  else if (event.key === "Home") focusOn(ring.places_.findIndex((_, one) => placed(one).place === 0));
  else if (event.key in steps) focusOn((k + steps[event.key] + ring.places) % ring.places);
  else return;
  event.preventDefault();
}

function focusOn(k) {
  ring.places_.forEach(({ place }, one) => place.setAttribute("tabindex", one === k ? "0" : "-1"));
  ring.places_[k].place.focus();
}

function mark(k) {
  ring?.places_.forEach(({ place }, one) => place.classList.toggle("chosen", one === k));
}

function choose(k) {
  if (!about.can_search) return;
  mark(k);
  const { begin } = placed(k);
  showRows({ begin, end: begin + ring.unit, topic, title: `Due ${between(begin)}` });
  if (matchMedia("(max-width: 900px)").matches) $("messages").scrollIntoView({ behavior: "smooth", block: "start" });
}

// --- messages -------------------------------------------------------------------------------

function show(...parts) {
  $("found").replaceChildren(...parts);
}

function showHint() {
  looked = null;
  if (about.can_search) {
    show(make("p", { class: "hint" }, "Search for a message, or press a part of the ring to list the messages that are due then."));
  } else if (about.brokers) {
    show(make("p", { class: "hint" }, "A RocketMQ broker wrote this store, so its files are only read. Messages can be found and cancelled after timerstore has opened it."));
  } else {
    show(make("p", { class: "hint" }, "This page reads the store's files. To find and cancel messages, let the program that has it open call ",
      make("code", {}, "timerstore.dashboard.start(store)"), ", or serve the store without --snapshot."));
  }
}

const wrong = (error) => make("p", { class: "wrong", role: "alert" }, error.message);

async function showRows(asked) {
  looked = { rows: asked };
  const mine = looked;
  show(make("p", { class: "hint" }, "Reading pending messages …"));
  try {
    const given = { begin_ms: asked.begin, end_ms: asked.end, max: SHOWN };
    if (asked.topic) given.topic = asked.topic;
    const { rows, has_more: hasMore } = await ask("api/rows", given);
    if (looked !== mine) return;
    const note = hasMore ? `the first ${SHOWN}` : plural(rows.length, "message");
    show(title(asked.topic ? `${asked.title}, ${asked.topic}` : asked.title, note), list(rows));
  } catch (error) {
    if (looked === mine) show(wrong(error));
  }
}

function title(text, note = "", back = null) {
  return make("p", { class: "title" },
    back ? make("button", { type: "button", class: "back", onclick: back }, "← back") : null,
    make("span", {}, text), make("span", { class: "note" }, note));
}

function list(rows) {
  if (!rows.length) return make("p", { class: "hint" }, "No pending messages.");
  return make("ul", { class: "rows" }, ...rows.map((row) => make("li", {},
    make("span", { class: "when" }, moment(row.due_ms)),
    make("button", { type: "button", class: "name id", onclick: () => open(row) }, row.message_id || "(no id)"),
    make("span", { class: "of" }, row.state === "pending" ? row.topic : `${row.topic}, ${row.state}`))));
}

function open(row) {
  const before = looked;
  showFound({ message: row.message_id, topic: row.topic }, before?.rows ? () => showRows(before.rows) : before?.asked ? () => showFound(before.asked) : null);
}

async function showFound(asked, back = null, done = null, quietly = false) {
  const mine = { asked, back };
  looked = mine;
  if (!quietly) show(make("p", { class: "hint" }, "Searching …"));
  try {
    const { found, rows } = await ask("api/search", asked);
    if (looked !== mine) return;
    mine.found = found;
    const head = back ? [title("", "", back)] : [];
    if (done) head.push(make("p", { class: "done", role: "status" }, done));
    if (found.length) show(...head, ...found.map((one) => detail(one)));
    else if (rows.length) show(...head, title("With this key", plural(rows.length, "message")), list(rows));
    else show(...head, make("p", { class: "hint" }, unknown(asked)));
  } catch (error) {
    if (looked === mine) show(wrong(error));
  }
}

function unknown({ message, topic: inTopic }) {
  const name = message.length > 60 ? `${message.slice(0, 60)}…` : message;
  if (inTopic) return `No message “${name}” in the topic ${inTopic}. Choose the topic “all” to search everywhere.`;
  return `No message “${name}”: it was never put, or retention removed it.`;
}

const WORDS = { put: "Put", rolled: "Rolled", moved: "Moved by retention", rescheduled: "Rescheduled", cancelled: "Cancelled", delivered: "Delivered to its topic" };

function detail(one) {
  const facts = [["Topic", one.topic]];
  if (one.state === "pending" && one.due_ms) facts.push(["Due", `${moment(one.due_ms)} · ${away(one.due_ms)}`]);
  if (one.shard !== null) facts.push(["Shard", String(one.shard)]);
  facts.push(["Where", place(one)]);
  if (one.slot !== null) {
    facts.push(["Slot", `${whole.format(one.slot)}, read at ${moment(one.slot_ms)}`]);
    if (one.chain_place !== null) facts.push(["In its chain", `${count(one.chain_place)} of ${count(one.chain_length)}`]);
  }
  const told = one.message;
  if (told) {
    if (told.tags) facts.push(["Tag", told.tags]);
    if (told.keys.length) facts.push(["Keys", told.keys.join(" ")]);
  }
  const rows = facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]);
  if (told) rows.push(make("dt", {}, "Body"), body(told));
  if (one.handle) rows.push(make("dt", {}, "Handle"), make("dd", { class: "mono" }, one.handle));
  const canCancel = one.handle && !about.read_only;
  return make("article", { class: "message" },
    make("div", { class: "line" }, make("span", { class: `state ${one.state}` }, one.state),
      canCancel ? make("button", { type: "button", class: "quiet-danger", onclick: () => confirmCancel(one) }, "Cancel …") : null),
    make("p", { class: "id" }, one.message_id),
    make("p", { class: "why" }, sentence(one.why)),
    make("dl", { class: "facts" }, ...rows),
    steps(one));
}

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

function place(one) {
  if (one.where === "queue") return `queue ${one.queue_id}, offset ${count(one.queue_offset)}`;
  return one.where === "nowhere" ? "removed" : one.where;
}

function body(told) {
  const size = make("span", { class: "note" }, ` ${bytes(told.body_bytes)}${told.body_is_cut ? ", cut" : ""}`);
  if (!told.body_bytes) return make("dd", {}, "empty");
  return make("dd", {}, make("div", { class: "body", tabindex: "0", role: "group", "aria-label": "Body" }, told.body), size);
}

function steps(one) {
  let before = null;
  const lines = one.history.map((entry) => {
    const since = before === null ? "" : ` · ${span(Math.max(0, entry.at_ms - before))} later`;
    before = entry.at_ms;
    const due = entry.due_ms ? `due ${moment(entry.due_ms)} · ` : "";
    return make("li", { class: entry.what }, make("b", {}, WORDS[entry.what] ?? entry.what), ` ${moment(entry.at_ms)}${since}`,
      make("span", { class: "note" }, `${due}log offset ${count(entry.log_offset)}`));
  });
  if (one.state === "pending" && one.due_ms) {
    lines.push(make("li", { class: "ahead" }, make("b", {}, "Due"), ` ${moment(one.due_ms)} · ${away(one.due_ms)}`));
  }
  return make("ol", { class: "steps", "aria-label": "History" }, ...lines);
}

let followedAt = 0;

/** Refresh a displayed pending message every second once it is due. */
function followShown() {
  const one = looked?.found?.[0];
  if (!one || one.state !== "pending" || !one.due_ms || $("dialog").open) return;
  if (serverNow() < one.due_ms || performance.now() - followedAt < 900) return;
  const begin = performance.now();
  followedAt = Infinity;
  showFound(looked.asked, looked.back, null, true).then(() => {
    followedAt = performance.now() + 9 * (performance.now() - begin); // slow without an index
  });
}

// --- cancelling -----------------------------------------------------------------------------

let cancelling = null;

function confirmCancel(one) {
  cancelling = one;
  const facts = [["Message", one.message_id, "mono"], ["Topic", one.topic, ""], ["Due", `${moment(one.due_ms)} · ${away(one.due_ms)}`, ""]];
  $("dialog-what").replaceChildren(...facts.flatMap(([name, text, kind]) => [make("dt", {}, name), make("dd", { class: kind }, text)]));
  $("dialog-wrong").hidden = true;
  $("dialog-cancel").disabled = false;
  $("dialog").showModal();
}

const RESULTS = {
  CANCELLED: "Cancelled. It will not be delivered.",
  ALREADY_DELIVERED: "Too late: it has already been delivered.",
  ALREADY_CANCELLED: "It has already been cancelled.",
  UNKNOWN: "The store has no such message any more.",
};

async function cancel() {
  const one = cancelling;
  $("dialog-cancel").disabled = true;
  try {
    const { result } = await ask("api/cancel", null, { handle: one.handle, confirm: one.message_id });
    $("dialog").close();
    await showFound({ message: one.message_id, topic: one.topic }, looked?.back ?? null, RESULTS[result] ?? result);
  } catch (error) {
    say("dialog-wrong", error.message);
    $("dialog-wrong").hidden = false;
    $("dialog-cancel").disabled = false;
  }
}

// --- event handlers --------------------------------------------------------------------------

function chooseTopic(name) {
  topic = name;
  $("topic").value = name;
  mark(null);
  listen();
}

$("turns").append(...TURNS.map((one) => make("label", {},
  make("input", { type: "radio", name: "turn", value: one.name, checked: one === turn ? "" : null }),
  make("span", {}, one.label))));
$("turns").addEventListener("change", (event) => {
  turn = TURNS.find((one) => one.name === event.target.value);
  history.replaceState(null, "", `#${turn.name}`);
  ring = null;
  listen();
});
$("topic").addEventListener("change", (event) => chooseTopic(event.target.value));
$("topics").addEventListener("click", (event) => {
  const name = event.target.dataset.topic;
  if (name !== undefined) chooseTopic(name === topic ? "" : name);
});
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const message = $("query").value.trim();
  mark(null);
  if (!message) return showHint();
  return showFound(topic ? { message, topic } : { message });
});
$("query").addEventListener("search", () => $("query").value || showHint());
$("dialog-cancel").addEventListener("click", cancel);
setInterval(() => {
  if (now === null || ring === null || !about.clock_runs) return;
  turnRing();
}, 1000);
listen();
