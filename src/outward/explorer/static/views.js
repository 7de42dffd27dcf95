/**
 * Drawing, and nothing else: each function is given data and an element. No imports, no fetch, so that a
 * notebook's widget is this file and a few lines. Text from outside becomes text nodes only, by `visible`.
 */

/** An element by "tag.class": `on…` are listeners, `style` an object, the rest attributes; strings become text nodes. */
export const el = (tag, ...inside) => fill(document.createElement(tag.split(".")[0]), tag, inside);

const svg = (tag, ...inside) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag.split(".")[0]), tag, inside);

function fill(node, tag, inside) {
	const props = inside[0]?.constructor === Object ? inside.shift() : {};
	for (const name of tag.split(".").slice(1)) node.classList.add(name);
	for (const [name, value] of Object.entries(props)) {
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
		else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
		else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
	}
	node.append(...inside.flat(9).filter(Boolean));
	return node;
}

/** Puts nodes into an element, in place of what was there. */
export const put = (box, ...nodes) => box.replaceChildren(...nodes.flat(9).filter(Boolean));

const times = (many, make) => Array.from({ length: many }, (_, i) => make(i));

const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|[^\P{Zs} ]/gu;
const LONGEST = 400;

/**
 * Text in which nothing hides: controls, bidi and zero-width characters, lone surrogates and odd spaces
 * become glyphs. Of very long texts, the beginning. In a token, spaces are shown, too.
 */
export function visible(text, token = false) {
	let shown = String(text).replace(HIDDEN, glyph).replace(/^\p{M}/u, "◌$&");
	if (token) shown = shown.replaceAll(" ", "·") || "∅";
	const points = Array.from(shown);
	return points.length > LONGEST ? `${points.slice(0, LONGEST).join("")}…` : shown;
}

function glyph(character) {
	const code = character.codePointAt(0);
	if (code === 9 || code === 10) return code === 9 ? "⇥" : "↵";
	if (code < 32) return String.fromCodePoint(0x2400 + code);
	return code === 127 ? "␡" : `⟪U+${code.toString(16).toUpperCase().padStart(4, "0")}⟫`;
}

export const known = Number.isFinite;

/** A number as it is read: a plus only where the sign matters. */
export function say(x, kind = "", digits = 3) {
	if (!known(x)) return "–";
	const size = Math.abs(x).toFixed(Math.abs(x) < 10 ? digits : 1);
	const sign = Number(size) === 0 ? "" : x < 0 ? "−" : kind === "signed" ? "+" : "";
	return sign + size + (kind === "ratio" ? "×" : "");
}

export const percent = (x) => `${(100 * x).toFixed(1)} %`;

export function mean(numbers) {
	const some = numbers.filter(known);
	return some.length ? some.reduce((a, b) => a + b) / some.length : null;
}

/** A round number that is not below x. */
function round(x) {
	const unit = 10 ** Math.floor(Math.log10(x || 1));
	return unit * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((k) => k * unit >= x * 0.999);
}

const inside = (x, least, most) => Math.max(least, Math.min(most, x));

// ---- colours: more is darker on a light page and lighter on a dark one; never red against green

const ANCHORS = {
	light: ["f0f4e2 d3e7b5 93d1b2 4db1be 2e84b4 295395 222e6a", "0e4a83 4a8cc4 a6c9e2 f4f2ec f5c493 df8730 974700"],
	dark: ["20252f 243b67 25649b 2f94b5 64c0af b6de9f f8f8c9", "9cd1ff 4a97d9 29517b 272b32 7a491a d07e2b ffc58b"],
};

/** 256 colours as rgb bytes, for shares of one or for signed numbers. */
function palette(signed) {
	const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
	const anchors = ANCHORS[theme][Number(signed)].split(" ");
	const byte = (i, c) => parseInt(anchors[i].slice(2 * c, 2 * c + 2), 16);
	return Uint8Array.from(times(768, (k) => {
		const place = (Math.floor(k / 3) / 255) * (anchors.length - 1);
		const i = Math.min(Math.floor(place), anchors.length - 2);
		return byte(i, k % 3) + (place - i) * (byte(i + 1, k % 3) - byte(i, k % 3));
	}));
}

/** The colours of numbers from low to high; `ink` is black or white, whichever is read better on them. */
export function scale(low, high, signed) {
	const colours = palette(signed);
	const at = (x) => inside((x - low) / (high - low), 0, 1);
	const rgb = (x) => [...colours.subarray(3 * Math.round(255 * at(x))).slice(0, 3)];
	const light = (x) => rgb(x).reduce((sum, c, i) => sum + [0.2126, 0.7152, 0.0722][i] * ((c / 255 + 0.055) / 1.055) ** 2.4, 0);
	return { low, high, at, css: (x) => (known(x) ? `rgb(${rgb(x)})` : ""), ink: (x) => (known(x) ? (light(x) > 0.18 ? "#000" : "#fff") : "") };
}

/** The colours of some numbers; signed ones evenly about 0. */
export function domain(numbers, kind) {
	const some = numbers.filter(known);
	const low = Math.min(0, ...some);
	const size = round(Math.max(-low, 1e-3, ...some));
	const signed = kind === "signed" || (kind === "cosine" && low < -0.02);
	return scale(signed ? -size : 0, size, signed);
}

/** What the colours mean. */
export function legend({ low, high, css }, text) {
	const steps = times(11, (i) => css(low + (i / 10) * (high - low)));
	return el("div.legend", text(low), el("span.ramp", { style: { background: `linear-gradient(90deg, ${steps})` } }), text(high));
}

const PLAIN = {
	self_similarity: "cos(y, v), the bias; How far what a head returns points along the token’s own value.",
	null_similarity: "null: any other token; The same with the values of the others: what any token would score.",
	excess_similarity: "excess over the null",
	centred_similarity: "centred cosine; The bias without what all visible values share.",
	self_weight: "weight on itself",
	self_weight_ratio: "weight over an even share",
	sink_weight: "weight on the first token",
	previous_weight: "weight on the one before",
	value_similarity: "cos(v, v); How alike the values of different tokens are.",
};
const plain = (name) => (PLAIN[name] ?? visible(name).replaceAll("_", " ")).split("; ");

/** A measure’s short name. */
export const title = (name) => plain(name)[0];

export const meaning = (name, measures) => el("p.soft", plain(name)[1], " ", el("code", visible(measures[name].what)));

/** A select with its label; choices are pairs of value and text. */
export const choose = (label, choices, chosen, change) => el("label.choose", label,
	el("select", { onchange: (event) => change(event.target.value) },
		choices.map(([value, text]) => el("option", { value, ...(value === chosen && { selected: "" }) }, text))));

function tableButton(change) {
	const button = el("button.toggle", { type: "button", "aria-pressed": "false", onclick: () => {
		const asked = button.ariaPressed === "false";
		button.ariaPressed = `${asked}`;
		change(asked);
	} }, "Show as table");
	return button;
}

/** A table of text; a wide one scrolls within. */
export const plainTable = (label, heads, rows) =>
	el("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, el("table",
		el("thead", el("tr", heads.map((text) => el("th", text)))),
		el("tbody", rows.map((row) => el("tr", row.map((text, i) => el(i ? "td" : "th", text)))))));

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9] };

/** Where a key leads from a cell, if anywhere. */
function step({ key }, row, column, rows, columns) {
	const by = STEPS[key];
	return by && [inside(row + by[0], 0, rows - 1), inside(column + by[1], 0, columns - 1)];
}

/**
 * Layers downwards, heads to the right, the mean of each layer behind. Tab reaches one cell, arrows the
 * others, Enter opens. Returns how to focus it.
 */
export function grid(element, { rows, measure, colours, text, readout, cursor, open }) {
	const widest = Math.max(...rows.map((row) => row.length));
	let r = Math.max(0, rows.findIndex((row) => row[0].layer === cursor?.layer));
	let c = Math.max(0, rows[r].findIndex((head) => head.head === cursor?.head));
	const value = el("span.value", { "aria-hidden": "true" });
	const cells = rows.map((row) => row.map((head) => el("div.cell", {
		role: "gridcell", tabindex: -1, style: { background: colours.css(head[measure]) },
		"aria-label": `layer ${head.layer}, head ${head.head}: ${text(head[measure])}`,
	})));
	const means = rows.map((row) => mean(row.map((head) => head[measure])));
	const tell = (y, x) => {
		cells[y][x].append(value);
		value.textContent = text(rows[y][x][measure]);
		readout.textContent = `Layer ${rows[y][x].layer}, head ${rows[y][x].head}: ${value.textContent}. Mean of the layer: ${text(means[y])}.`;
	};
	const go = (y, x) => {
		cells[r][c].tabIndex = -1;
		[r, c] = [y, Math.min(x, rows[y].length - 1)];
		cells[r][c].tabIndex = 0;
		tell(r, c);
		return cells[r][c];
	};
	const enter = () => open?.(rows[r][c].layer, rows[r][c].head);
	const under = (then) => (event) => cells.forEach((row, y) => {
		const x = row.indexOf(event.target.closest(".cell"));
		if (x >= 0) then(y, x);
	});
	const press = (event) => {
		const to = step(event, r, c, rows.length, rows[r].length);
		if (to) go(...to).focus();
		else if (event.key === "Enter" || event.key === " ") enter();
		else return;
		event.preventDefault();
	};
	const [low, high] = [Math.min(0, ...means), Math.max(1e-9, ...means)];
	const part = (x) => `${(100 * x) / (high - low)}%`;
	const bar = (x) => el("span.bar", { style: { left: part(Math.min(x, 0) - low), width: part(Math.abs(x)), background: colours.css(x) } });
	const line = (first, ...more) => el("div", { role: "row" }, el("div", { role: "rowheader" }, first), more);
	put(element, el("div.heads", {
		role: "grid", "aria-label": `${title(measure)}: layers downwards, heads to the right`,
		class: `heads ${rows.length > 40 ? "tiny" : rows.length > 16 ? "small" : ""} ${open ? "opens" : ""}`, style: { "--heads": widest },
		onkeydown: press, onpointerover: under(tell), onpointerleave: () => tell(r, c),
		onclick: under((y, x) => { go(y, x).focus(); enter(); }),
	}, line("layer", times(widest, (n) => el("div", { role: "columnheader" }, `${n}`)), el("div.mean", { role: "columnheader" }, "mean")),
	rows.map((row, y) => line(`${row[0].layer}`, cells[y],
		el("div.mean", { role: "gridcell" }, el("span.track", bar(means[y])), text(means[y]))))));
	go(r, c);
	return () => cells[r][c].focus();
}

/**
 * A run: choosers, grid, reading. `data` is what /api/runs/ID answers. Returns how to focus the grid.
 */
export function renderRun(element, data, { measure, series, cursor, open, change } = {}) {
	element.classList.add("outward");
	const { heads, warnings = [] } = data.summary;
	const others = Object.entries(data.others ?? {}).map(([name, x]) => [name, x.heads]);
	const all = { main: heads, ...Object.fromEntries(others) };
	const named = Object.keys(data.measures).filter((m) => heads.some((h) => known(h[m])));
	const list = (texts) => el("ul", texts.map((s) => el("li", visible(s))));
	const speaks = el("h2");
	const words = el("section.words", speaks, list(data.reading ?? []),
		warnings.length > 0 && el("details", el("summary", "Before you believe it"), list(warnings)));
	const chosen = { measure: [measure, "self_similarity", named[0]].find((m) => named.includes(m)), series: series in all ? series : "main" };
	const [said, box, key, readout] = [el("div"), el("div"), el("div"), el("p.readout", { "aria-live": "polite" })];
	const below = el("div.row.apart", readout, key);
	let [asTable, focus] = [false, () => {}];

	const draw = () => {
		const { kind } = data.measures[chosen.measure];
		const text = (x) => say(x, kind);
		const rows = Object.values(Object.groupBy(all[chosen.series], (h) => h.layer));
		const colours = domain(Object.values(all).flat().map((h) => h[chosen.measure]), kind);
		speaks.textContent = `What it says${chosen.series === "main" ? "" : ` of main, not of ${visible(chosen.series)}`}`;
		put(said, meaning(chosen.measure, data.measures));
		below.hidden = asTable;
		put(key, legend(colours, (x) => say(x, kind, x && Math.abs(x) < 0.1 ? 3 : 1)));
		if (asTable) put(box, headTable(rows, chosen.measure, text));
		else focus = grid(box, { rows, measure: chosen.measure, colours, text, readout, cursor, open });
	};
	const set = (part) => {
		Object.assign(chosen, part);
		draw();
		change?.(chosen);
	};
	put(element, el("div.run", named.length ? el("section",
		el("div.row", choose("Measure", named.map((m) => [m, title(m)]), chosen.measure, (m) => set({ measure: m })),
			others.length > 0 && choose("Series", Object.keys(all).map((s) => [s, visible(s)]), chosen.series, (s) => set({ series: s })),
			tableButton((asked) => { asTable = asked; draw(); })),
		said, box, below) : el("p.soft", "Nothing was measured in this run."), words));
	if (named.length) draw();
	return () => focus();
}

function headTable(rows, measure, text) {
	const every = times(Math.max(...rows.map((row) => row.length)), (n) => n);
	return plainTable("Numbers by layer and head", ["layer", ...every.map((n) => `head ${n}`), "mean"], rows.map((row) =>
		[`${row[0].layer}`, ...every.map((n) => (row[n] ? text(row[n][measure]) : "")), text(mean(row.map((h) => h[measure])))]));
}

/** What a head does, in words made from its numbers: `m` has the spread of each measure. */
export function sentence(m) {
	const of = (name, kind = "", digits = 2) => say(m[name].mean, kind, digits);
	const has = (...names) => names.every((name) => known(m[name]?.mean));
	return [
		has("self_similarity") && `What this head returns has a cosine of ${of("self_similarity")} with the token’s own value; for nine `
			+ `tokens of ten it lies between ${say(m.self_similarity.q05, "", 2)} and ${say(m.self_similarity.q95, "", 2)}.`,
		has("null_similarity", "excess_similarity") && `Any other visible token would score ${of("null_similarity")}: `
			+ `${of("excess_similarity", "signed")} is about the token itself.`,
		has("self_weight", "self_weight_ratio") && `A token gives itself ${percent(m.self_weight.mean)} of its attention, `
			+ `${of("self_weight_ratio", "", 1)} times an even share.`,
		has("removed_energy") && `The exclusive form would take out ${percent(m.removed_energy.mean)} of the energy of what it returns.`,
	].filter(Boolean).join(" ") || "No token of this head sees another: nothing can be said.";
}

/** Where nine tokens of ten lie, the median as a stroke, the mean as a dot. */
function rangeBar(x, kind) {
	const low = kind === "cosine" || kind === "signed" ? -1 : 0;
	const high = kind === "ratio" || kind === "nats" ? round(x.q95) : 1;
	const at = (v) => 3 + 154 * inside((v - low) / (high - low), 0, 1);
	const stroke = (name, v) => svg(`path.${name}`, { d: `M${at(v)},2v12` });
	return svg("svg", { viewBox: "0 0 160 16", "aria-hidden": "true" }, svg("path.axis", { d: "M3,8h154" }), stroke("axis", 0),
		svg("rect.span", { x: at(x.q05), width: Math.max(2, at(x.q95) - at(x.q05)), y: 5, height: 6, rx: 2 }),
		stroke("median", x.q50), svg("circle.dot", { cx: at(x.mean), cy: 8, r: 3 }));
}

/** The measures of a head; a press on a name picks that one. */
export function measureTable(element, { spread, measures, chosen, choose: pick }) {
	const rows = Object.entries(measures).filter(([name]) => known(spread[name]?.mean)).map(([name, { kind }]) => {
		const x = spread[name];
		const button = el("button", { type: "button", "aria-pressed": `${name === chosen}`, onclick: () => pick(name) }, title(name));
		return el("tr", el("th", { scope: "row" }, button), el("td", say(x.mean, kind)), el("td", rangeBar(x, kind)),
			el("td", el("em", `${say(x.q05, kind, 2)} to ${say(x.q95, kind, 2)}`)));
	});
	put(element, el("table.measures", el("thead", el("tr", ["measure", "mean", "", "nine tokens of ten"].map((name) => el(name ? "th" : "td", name)))),
		el("tbody", rows)));
}

/** A drawing that can be shown as a table, too, and is drawn again when its width changes. */
export function figure(name, caption, draw, asTable) {
	const box = el("div");
	let [asked, width] = [false, 0];
	const button = tableButton((on) => {
		asked = on;
		if (on) put(box, asTable());
		else draw(box);
	});
	new ResizeObserver(() => {
		if (!asked && box.clientWidth !== width) draw(box);
		width = box.clientWidth;
	}).observe(box);
	return el("figure", el("figcaption", el("div", el("h2", name), el("p", el("em", caption))), button), box);
}

const [LEFT, TOP, BOTTOM] = [10, 12, 30];

function frame(box, tall, label) {
	const wide = Math.max(200, box.clientWidth);
	const root = svg("svg.plot", { width: wide, height: tall, role: "img", "aria-label": label });
	put(box, root);
	const line = (name, d) => root.append(svg(`path.${name}`, { d }));
	const text = (x, y, words, anchor = "middle") => root.append(svg("text", { x, y, "text-anchor": anchor }, words));
	return { root, line, text, width: wide - 2 * LEFT, height: tall - TOP - BOTTOM };
}

const SHARES = times(9, (n) => n / 4 - 1);
const TICKS = {
	weight: [1e-4, 1e-3, 0.01, 0.1, 1], ratio: [0.01, 0.1, 1, 10, 100], signed: [-3, -1, -0.3, -0.1, 0, 0.1, 0.3, 1, 3],
	cosine: SHARES, share: SHARES, nats: times(17, (n) => n),
};

/** How a measure is spread over tokens: a step per bin, the mean as a stroke, the counts of another as an outline. */
export function histogram(box, { counts, edges, other, kind, mean: middle, label }) {
	const drawn = [counts, other].filter(Boolean).map((c) => {
		const sum = c.reduce((a, b) => a + b, 0) || 1;
		return c.map((n) => n / sum);
	});
	const used = [...counts.keys()].filter((i) => drawn.some((c) => c[i] > 0));
	const [first, last] = [Math.max(0, used[0] - 3), Math.min(counts.length, used.at(-1) + 4)];
	const top = Math.max(...drawn.flat());
	const { line, text, width, height } = frame(box, 210, label);
	const [x, y] = [(bin) => LEFT + ((bin - first) / (last - first)) * width, (v) => TOP + height * (1 - v / top)];
	const path = (c) => `M${x(first)},${y(0)}${c.slice(first, last).map((v, i) => `V${y(v).toFixed(1)}H${x(first + i + 1).toFixed(1)}`).join("")}V${y(0)}`;
	const inBins = (v) => {
		const i = inside(edges.findLastIndex((e) => e <= v), 0, edges.length - 2);
		return i + inside((v - edges[i]) / (edges[i + 1] - edges[i]), 0, 1);
	};
	line("fill", path(drawn[0]));
	line("axis", `M${LEFT},${y(0)}h${width}`);
	if (other) line("outline", path(drawn[1]));
	let taken = -99;
	for (const tick of TICKS[kind] ?? []) {
		const at = x(inBins(tick));
		if (tick < edges[first] || tick > edges[last] || at - taken < 36) continue;
		taken = at;
		line("axis", `M${at},${y(0)}v4`);
		text(at, y(0) + 18, `${tick}`.replace("-", "−"));
	}
	if (known(middle)) line("mark", `M${x(inBins(middle))},${TOP - 4}V${y(0)}`);
}

/** 0, 1, 2–3, 4–7 … */
export const places = (place) => (place < 2 ? `${place}` : `${place}–${2 * place - 1}`);

/** How a measure goes with the place in the document: the mean, in the band of nine tokens of ten. */
export function curve(box, { rows, other = [], kind, label }) {
	const all = [...rows.flatMap((r) => [r.q05, r.q95, r.mean]), ...other.map((r) => r.mean)].filter(known);
	const [least, most] = [Math.min(...all, 0), Math.max(...all, 0)];
	const [low, high] = [least < 0 ? -round(-least) : 0, most > 0 ? round(most) : 0];
	const { root, line, text, width, height } = frame(box, 230, label);
	const [from, to] = [LEFT + 40, LEFT + width - 14];
	const x = (i) => from + (i / (rows.length - 1)) * (to - from);
	const y = (v) => TOP + height * (1 - (v - low) / (high - low || 1));
	for (const v of new Set([low, (low + high) / 2, high, 0])) {
		line(v ? "rule" : "axis", `M${from},${y(v)}H${LEFT + width}`);
		text(from - 8, y(v) + 4, say(v, kind, 2), "end");
	}
	const points = (some, of) => some.map((r) => [rows.findIndex((own) => own.place === r.place), r[of]])
		.filter(([i, v]) => i >= 0 && known(v)).map(([i, v]) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`);
	line("band", `M${[...points(rows, "q95"), ...points(rows, "q05").reverse()].join("L")}Z`);
	if (other.length) line("outline", `M${points(other, "mean").join("L")}`);
	line("curve", `M${points(rows, "mean").join("L")}`);
	let taken = -99;
	rows.forEach((r, i) => {
		root.append(svg("circle.point", { cx: x(i), cy: y(r.mean), r: 3 }));
		if (x(i) - taken < 52) return;
		taken = x(i);
		text(taken, TOP + height + 18, places(r.place));
	});
}

/** A token’s text, its spaces and line ends as small marks. */
export const marked = (token) => visible(token, true).split(/([·↵⇥]+)/).map((part) => (/^[·↵⇥]/.test(part) ? el("small", part) : part));

/** Tokens of which one is chosen, by mouse or keys. */
export function tokenLine({ tokens, label, pick, look }) {
	let at = -1;
	const spans = tokens.map((token, i) => el("span", { role: "option", id: `token-${i}`, "aria-selected": "false" }, marked(token)));
	const under = (then) => (event) => {
		const i = spans.indexOf(event.target.closest("[role=option]"));
		if (i >= 0) then(i);
	};
	const box = el("div.tokens", {
		role: "listbox", tabindex: 0, "aria-label": label, onclick: under(pick), onpointerover: under(look), onpointerleave: () => look(null),
		onkeydown: (event) => {
			const to = beside(event.key, spans, Math.max(0, at));
			if (to === undefined) return;
			event.preventDefault();
			pick(Math.max(0, to));
		},
	}, spans.map((span, i) => [span, tokens[i].includes("\n") && el("br")]));
	return {
		box,
		choose(i) {
			if (spans[at]) spans[at].ariaSelected = "false";
			at = i;
			if (spans[at]) {
				spans[at].ariaSelected = "true";
				const { offsetTop: top, offsetHeight: high } = spans[at]; // within the line alone: the page stays
				if (top < box.scrollTop || top + high > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
			}
			box.setAttribute("aria-activedescendant", spans[at]?.id ?? "");
		},
		colour: (value, colours) => spans.forEach(({ style }, i) => {
			style.background = colours.css(value(i));
			style.color = colours.ink(value(i));
		}),
	};
}

/** The token that a key leads to; up and down are lines on the screen. */
function beside(key, spans, at) {
	const end = (span) => span.offsetLeft + span.offsetWidth;
	const [own, last] = [spans[at], spans.length - 1];
	return {
		Home: () => 0, End: () => last, ArrowRight: () => Math.min(last, at + 1), ArrowLeft: () => at - 1,
		ArrowDown: () => Math.max(at, spans.findIndex((s) => s.offsetTop > own.offsetTop && end(s) > own.offsetLeft)),
		ArrowUp: () => spans.findLastIndex((s) => s.offsetTop < own.offsetTop && s.offsetLeft < end(own)),
	}[key]?.();
}

/** Bytes as colours on a canvas, a pixel per cell; signed ones are −1..1 as 0..254, and 255 is unknown. */
export function paint(canvas, bytes, rows, columns, signed) {
	const rgb = palette(signed);
	const words = Uint32Array.from(times(256, (n) => {
		const k = 3 * (signed ? Math.round((n * 255) / 254) : n);
		return signed && n === 255 ? 0 : (255 << 24) | (rgb[k + 2] << 16) | (rgb[k + 1] << 8) | rgb[k];
	}));
	const image = new ImageData(columns, rows);
	const pixels = new Uint32Array(image.data.buffer);
	for (let i = 0; i < pixels.length; i++) pixels[i] = words[bytes[i]];
	Object.assign(canvas, { width: columns, height: rows }).getContext("2d").putImageData(image, 0, 0);
}

/** A canvas whose cells are walked by keys and mouse. */
export function walkable({ label, under, pick, look }) {
	const canvas = el("canvas");
	const [row, column, cell] = [el("div"), el("div"), el("div.at")];
	let [rows, columns, at] = [1, 1, [0, 0]];
	const place = ({ clientX, clientY }) => {
		const { left, top, width, height } = canvas.getBoundingClientRect();
		const part = (x, many) => inside(Math.floor(x * many), 0, many - 1);
		return [part((clientY - top) / height, rows), part((clientX - left) / width, columns)];
	};
	const box = el("div.matrix", {
		role: "application", tabindex: 0, "aria-label": label, "aria-describedby": "facts",
		onclick: (event) => pick(...place(event)), onpointermove: (event) => look(...place(event)), onpointerleave: () => look(null),
		onkeydown: (event) => {
			const to = step(event, ...at, rows, columns);
			if (!to) return;
			event.preventDefault();
			pick(...to);
		},
	}, under, canvas, !under && [row, column], cell);
	return {
		box, canvas,
		resize: (...size) => { [rows, columns] = size; },
		mark(r, c) {
			at = [Math.max(0, r), Math.max(0, c)];
			const part = (n, of) => `${(100 * n) / of}%`;
			cell.hidden = r < 0;
			for (const { style } of [row, cell]) Object.assign(style, { top: part(r, rows), height: part(1, rows) });
			for (const { style } of [column, cell]) Object.assign(style, { left: part(c, columns), width: part(1, columns) });
		},
	};
}

/** The largest of a row as text, each with a bar. */
export const topList = (element, items, colours, high) => put(element, items.map(({ name, value, text, own, mark }) =>
	el(own ? "li.own" : "li", el("span.name", el("span", name), el("em", mark)),
		el("span.track", el("span.bar", { style: { width: `${(100 * Math.abs(value)) / high}%`, background: colours.css(value) } })), text)));
