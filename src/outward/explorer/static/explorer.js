/** The page: addresses after the #, what is fetched for them, and the views of runs, a run and a head. */

import * as draw from "./views.js";
import { ask, mountLive } from "./live.js";

const { el, put, say, visible } = draw;
const [view, trail, liveLink] = ["view", "trail", "live"].map((id) => document.getElementById(id));

/** What the address says; numbers that it does not are null. */
function route() {
	const given = new URLSearchParams(location.hash.slice(1));
	const number = (name) => (/^\d+$/.test(given.get(name)) ? Number(given.get(name)) : null);
	return { live: null, ...Object.fromEntries(given), layer: number("layer"), head: number("head"), token: number("token") };
}

const address = (to) => `#${new URLSearchParams(Object.entries(to).filter(([, x]) => x !== null && x !== undefined && x !== "main"))}`
	.replace("live=", "live");

// the address follows what is chosen, without a step in the history
const follow = (part) => history.replaceState(null, "", address({ ...route(), ...part }));

const kept = new Map();

/** An answer that does not change: asked once. */
function once(path) {
	if (!kept.has(path)) kept.set(path, ask(path).then((answer) => answer.json()));
	kept.get(path).catch(() => kept.delete(path));
	return kept.get(path);
}

// a view is { name, trail: pairs of text and address, nodes, ready: draws, and returns how to focus }

let turn = 0;
let running = null; // the model that is loaded, as the server says

/** Draws the view of the address; walked: somebody came here from another. */
async function show(walked) {
	const mine = ++turn;
	const here = route();
	view.ariaBusy = "true";
	let made;
	try {
		const { runs, live } = await (await ask("/api/runs")).json();
		running = live;
		made = here.run ? await (here.layer === null || here.head === null ? runView(here) : headView(here))
			: here.live === null ? listView(runs) : liveView(here);
	} catch (error) {
		made = { name: "Error", nodes: [problem(error.message)] };
	}
	if (mine !== turn) return;
	document.title = `${made.name} · Outward`;
	const steps = [["Outward", "#"], ...made.trail ?? []];
	put(trail, steps.map(([text, href], i) => el("a", { href, "aria-current": i === steps.length - 1 && "page" }, text)));
	liveLink.hidden = !running;
	liveLink.textContent = `Live: ${visible(running?.model)}`;
	put(view, made.nodes);
	view.ariaBusy = null;
	const focus = made.ready?.() ?? (() => view.querySelector("h1").focus());
	if (walked) {
		scrollTo(0, 0);
		focus();
	}
}

const heading = (name, ...below) => el("div", el("h1", { tabindex: -1 }, name), below);
const facts = (...texts) => el("p.facts.soft", texts.filter(Boolean).map((text) => el("span", visible(text))));
const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

const problem = (text) => el("section.notice", { role: "alert" }, heading("This cannot be shown"), el("p", visible(text)),
	el("button", { type: "button", onclick: () => show(false) }, "Try again"), " ", el("a", { href: "#" }, "All runs"));

let lastRun = null;

function listView(runs) {
	if (!runs.length) {
		return { name: "Runs", nodes: [el("section.notice", heading("No runs yet"), el("p", "Measure a model, and open the folder:"),
			el("pre", "outward measure smollm2 --out runs/smollm2\noutward explore runs"),
			running && el("p", "Or ", el("a", { href: "#live" }, "try an input of yours"), " in the model that is loaded."))] };
	}
	const rows = runs.map((run) => el("li", line(run)));
	const links = rows.map((row) => row.querySelector("a")).filter(Boolean);
	const reach = (to) => {
		for (const a of links) a.tabIndex = a === to ? 0 : -1;
		return to;
	};
	const start = reach(links.find((a) => a.hash === address({ run: lastRun })) ?? links[0]);
	const list = el("ul.runs", { onkeydown: (event) => {
		const at = links.indexOf(event.target);
		const to = { Home: 0, End: links.length - 1, ArrowUp: at - 1, ArrowDown: at + 1 }[event.key];
		if (at < 0 || !links[to]) return;
		event.preventDefault();
		reach(links[to]).focus();
	} }, rows);
	return { name: "Runs", nodes: [heading("Runs", facts("Arrow keys and Enter open one")), list],
		ready: () => start && (() => start.focus()) };
}

function line(run) {
	const name = el("b", visible(run.name));
	if (run.problem) return el("div.line", name, el("span.why", visible(run.problem)));
	const more = run.series.filter((s) => s !== "main").join(", ");
	return el("a.line", { href: address({ run: run.id }) }, name,
		[run.model ?? "–", run.data ?? "–", `${run.layers} × ${run.heads ?? "?"} heads`, many(run.windows, "window"), more].map((text) => el("span", visible(text))));
}

const lastHead = new Map();
const runPath = (id) => `/api/runs/${encodeURIComponent(id)}`;
const modelOf = ({ model }) => model?.id ?? model?.class ?? "";

async function runView(here) {
	const { about, ...data } = await once(runPath(here.run));
	lastRun = here.run;
	const box = el("div");
	return {
		name: visible(data.name), trail: [[visible(data.name), address({ run: here.run })]],
		nodes: [heading(visible(data.name), facts(modelOf(about), about.data?.data, `${many(about.windows.main, "window")} of ${many(about.documents.main, "document")}`)),
			box, el("details", el("summary", "How it was made"), about.command && el("pre", visible(about.command)), facts(about.finished))],
		ready: () => draw.renderRun(box, data, {
			measure: here.measure, series: here.series, cursor: lastHead.get(here.run), change: follow,
			open: (layer, head) => { location.hash = address({ ...route(), layer, head }); },
		}),
	};
}

async function headView(here) {
	const { run, layer, head, measure } = here;
	const data = await once(runPath(run));
	const { heads } = data.summary;
	const at = heads.findIndex((h) => h.layer === layer && h.head === head);
	if (at < 0) throw new Error(`This run has no layer ${layer} with a head ${head}.`);
	const series = data.series.includes(here.series) ? here.series : "main";
	const baseline = data.series.find((s) => s !== series && !/^(main|length=|step=)/.test(s));
	const [own, base] = await Promise.all([series, baseline].map((s) => s && once(`${runPath(run)}/heads/${layer}/${head}?${new URLSearchParams({ series: s })}`)));
	lastRun = run;
	lastHead.set(run, { layer, head });

	const near = (to, text) => to && el("a.button", { href: address({ ...here, layer: to.layer, head: to.head }) }, text);
	const [list, plots] = [el("div"), el("section.plots")];
	const usable = Object.keys(own.measures).filter((m) => data.measures[m]);
	const pick = (name) => {
		draw.measureTable(list, { spread: own.measures, measures: data.measures, chosen: name, choose: (m) => {
			follow({ measure: m });
			pick(m);
			list.querySelector("[aria-pressed=true]").focus();
		} });
		put(plots, draw.meaning(name, data.measures), drawings(name, data.measures[name].kind, own, base, baseline));
	};
	pick([measure, "self_similarity", usable[0]].find((m) => usable.includes(m)));
	const panel = running && el("section.panel");
	const title = `Layer ${layer}, head ${head}`;
	return {
		name: `${title} · ${visible(data.name)}`,
		trail: [[visible(data.name), address({ run, measure, series: here.series })], [title, address(here)]],
		nodes: [el("div.row.apart", heading(title, facts(own.module)), el("nav.row", { "aria-label": "Other heads" },
			near(heads[at - 1], "← previous head"), near(heads[at + 1], "next head →"))),
			el("div.head", el("section", el("p.lead", draw.sentence(own.measures)), data.series.length > 1 && draw.choose("Series",
				data.series.map((s) => [s, visible(s)]), series, (s) => { follow({ series: s }); show(false); }), list), plots), panel],
		ready: () => { if (panel) mountLive(panel, { live: running, here, follow }); },
	};
}

/** The histogram and the curve of one measure; behind the bias its null, behind others a baseline. */
function drawings(measure, kind, head, base, baseline) {
	const name = draw.title(measure);
	const [from, against, label] = measure === "self_similarity" ? [head, "null_similarity", draw.title("null_similarity")]
		: [base, measure, visible(baseline)];
	const [own, outline] = [head.histograms[measure], from?.histograms[against]];
	const [rows, other] = [head.places[measure] ?? [], from?.places[against]];
	const { mean, q05, q95 } = head.measures[measure];
	const text = (x) => say(x, kind);
	const key = (there, more) => [el("i.swatch"), name, there && [el("i.swatch.dashed"), label], more];
	const words = `${name} over tokens: mean ${text(mean)}, nine of ten from ${text(q05)} to ${text(q95)}`
		+ (outline ? `; ${label}: mean ${text(from.measures[against].mean)}` : "");
	const made = [
		own?.counts.some(Boolean) && draw.figure("Over tokens", key(outline, ` · stroke: mean${/weight|ratio|signed/.test(kind) ? " · logarithmic" : ""}`),
			(box) => draw.histogram(box, { ...own, kind, mean, label: words, other: outline?.counts }),
			() => draw.plainTable(words, ["from", "to", "tokens", outline ? label : ""],
				own.counts.map((n, i) => [text(own.edges[i]), text(own.edges[i + 1]), `${n}`, `${outline?.counts[i] ?? ""}`]).filter((r) => r[2] > 0 || r[3] > 0))),
		rows.length > 1 && draw.figure("By place in the document", key(other, " · band: nine tokens of ten"),
			(box) => draw.curve(box, { rows, other, kind, label: `${name} by place: from ${text(rows[0].mean)} to ${text(rows.at(-1).mean)}` }),
			() => draw.plainTable("By place", ["place", "tokens", "mean", "5 %", "median", "95 %"],
				rows.map((r) => [draw.places(r.place), `${r.n}`, ...[r.mean, r.q05, r.q50, r.q95].map(text)]))),
	].filter(Boolean);
	return made.length ? made : el("p.soft", "Of this measure there is one number per head: nothing to draw.");
}

function liveView(here) {
	if (!running) throw new Error("No model is loaded. Start `outward explore --model NAME`.");
	const panel = el("section.panel");
	return {
		name: "Live", trail: [["Live", "#live"]],
		nodes: [heading("Live", facts(running.model, `${running.layers} layers × ${running.heads} heads`)), panel],
		ready: () => mountLive(panel, { live: running, here, follow, alone: true }),
	};
}

document.addEventListener("keydown", (event) => {
	if (event.key !== "Escape") return;
	if (event.target.matches("textarea, select")) return event.target.blur();
	const up = [...trail.querySelectorAll("a")].at(-2);
	if (up) location.hash = up.hash;
});
addEventListener("hashchange", () => show(true));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(false));

show(false);
