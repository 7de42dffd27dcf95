/** What is asked of the server, and the live panel: one text or picture, one head beside its exclusive form. */

import * as draw from "./views.js";

const { el, put, say, known, visible } = draw;
const SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog does not mind.";

/** An answer, or an error that says what to do. */
export async function ask(path, options) {
	const answer = await fetch(path, options).catch((error) => {
		throw new Error(error.name === "AbortError" ? "Stopped."
			: "The server does not answer. Start `outward explore` again, and open the address that it prints.");
	});
	if (answer.ok) return answer;
	const said = await answer.json().catch(() => ({}));
	throw new Error(said.error ?? `The server answered ${answer.status}.`);
}

/** The arrays of a safetensors file: { shape, data } by name. */
export function tensors(bytes) {
	const size = Number(new DataView(bytes).getBigUint64(0, true));
	const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, size)));
	return Object.fromEntries(Object.entries(header).map(([name, { dtype, shape, data_offsets: [from, to] }]) => {
		const data = new { U8: Uint8Array, F32: Float32Array, F16: Uint16Array }[dtype](bytes.slice(8 + size + from, 8 + size + to));
		return [name, { shape, data: dtype === "F16" ? Float32Array.from(data, half) : data }];
	}));
}

function half(h) {
	const [exponent, fraction, sign] = [(h >> 10) & 31, h & 1023, h & 0x8000 ? -1 : 1];
	if (exponent === 31) return NaN; // or infinite: nothing to draw either
	return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}

const MATRICES = {
	returns: ["what it returns", "returns_exclusive", "How far what token i gets points along the value of token j."],
	context: ["context similarity", "context_exclusive", "How alike is what two tokens get."],
	attention: ["attention", "returns_exclusive", "How much token i attends to token j. "
		+ "The weights are the same in both forms: the matrix on the right is another quantity, of what comes out."],
};
const FORMULAS = {
	attention: "P_ij", context: "cos(y_i, y_j)", context_exclusive: "cos(z_i, z_j)",
	returns: "cos(y_i, v_j)", returns_exclusive: "cos(z_i, v_j)",
};
const COLOURS = { self_similarity: "cos(y, v)", self_weight: "weight on itself", null_similarity: "null", row: "row of the chosen one" };

// kept while one walks from head to head
let last = null;
const chosen = { matrix: "returns", colour: "self_similarity" };

/** The panel; live is what the server says of the model, alone: without a run. */
export function mountLive(element, { live, here, follow, alone }) {
	const status = el("p.status", { role: "status" });
	const output = el("div.result");
	const sees = live.kind === "image";
	const name = sees ? "Choose a picture" : "Run";
	const button = el("button.main", name);
	let stop = null;

	const tell = (text, kind = "soft") => {
		status.className = `status ${kind}`;
		status.textContent = visible(text);
	};
	const fail = (error) => tell(`! ${error.message}`, "bad");
	const result = () => {
		const n = last.tokens.length;
		tell([`${n} token${n === 1 ? "" : "s"} in ${last.seconds.toFixed(2)} s.`, last.cut && `The input was longer: it is cut at ${n} tokens.`,
			...last.left_out ?? []].filter(Boolean).join(" "), last.cut ? "cut" : "soft");
		show(output, { here, follow, alone, fail });
	};
	const send = async (body, type) => {
		stop = new AbortController();
		button.textContent = "Stop";
		tell("Running…");
		try {
			last = await (await ask("/api/live", { method: "POST", body, headers: { "Content-Type": type }, signal: stop.signal })).json();
			last.arrays = tensors(await (await ask(`/api/live/${last.id}/tokens`)).arrayBuffer());
			result();
		} catch (error) {
			fail(error);
		}
		stop = null;
		button.textContent = name;
	};
	const take = (given) => {
		if (given?.type.startsWith("image/")) send(given, given.type);
		else if (given) fail(new Error(`${given.name} is no picture.`));
	};

	const text = el("textarea", { rows: 2, spellcheck: "false", "aria-label": "Your text", onkeydown: (event) => {
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
	} }, sessionStorage.text ?? SENTENCE);
	const file = el("input", { type: "file", accept: "image/*", hidden: "", onchange: () => take(file.files[0]) });
	const over = (on) => (event) => {
		event.preventDefault();
		form.classList.toggle("over", on);
		if (event.type === "drop") take(event.dataTransfer.files[0]);
	};
	const drop = sees && { ondragover: over(true), ondragleave: over(false), ondrop: over(false) };
	const form = el(sees ? "form.ask.drop" : "form.ask", { ...drop, onsubmit: (event) => {
		event.preventDefault();
		if (stop) stop.abort();
		else if (sees) file.click();
		else if (!text.value.trim()) fail(new Error("Type a sentence first."));
		else {
			sessionStorage.text = text.value;
			send(JSON.stringify({ text: text.value }), "application/json");
		}
	} }, sees ? ["Drop a picture here, or", button, file] : [text, button]);
	put(element, el("h2", "Try it live in ", visible(live.model)), form, status, output);
	if (last?.arrays) result();
	else if (!sees && (alone || here.token !== null)) form.requestSubmit();
}

/** Everything about the last result. */
function show(output, { here, follow, alone, fail }) {
	const { id, tokens, layers, arrays, grid, prefix } = last;
	const layerOf = (n) => Math.max(0, layers.findIndex((l) => l.layer === n));
	let at = layerOf(here.layer);
	let head = Math.min(here.head ?? 0, layers[at].heads - 1);
	let [token, key, data, asked] = [-1, -1, null, null];
	const size = () => data.self_weight.data.length;
	const linked = () => size() === tokens.length; // some layers see other tokens than came in
	const patch = (i) => grid && linked() && i >= prefix && i < prefix + grid[0] * grid[1] && [Math.floor((i - prefix) / grid[1]), (i - prefix) % grid[1]];
	const nameOf = (i) => (patch(i) ? `row ${patch(i)[0]}, column ${patch(i)[1]}` : linked() ? tokens[i] : `#${i}`);
	const ofHead = (name, n, h) => {
		const [, heads, many] = arrays[name].shape;
		return arrays[name].data.subarray((n * heads + h) * many, (n * heads + h + 1) * many);
	};
	const cell = (name, i, j) => {
		const own = data[{ returns: "self_similarity", attention: "self_weight" }[name]]?.data[i];
		if (i === j && known(own)) return own; // exact, where a matrix has bytes
		const byte = data[name].data[i * size() + j];
		if (name === "attention") return (byte / 255) * data.attention_max.data[i];
		return byte === 255 ? NaN : byte / 127 - 1;
	};

	const text = (name, x) => (name === "attention" && x < 0.01 ? "<0.01" : say(x, "", 2));
	const sees = (i, j) => j >= data.seen_from.data[i] && j < data.seen_to.data[i];

	const names = (some) => Object.entries(some).map(([k, v]) => [k, [v].flat()[0]]);
	const numbers = (some) => some.map((x, i) => [`${i}`, `${x}`]);
	const most = Math.max(...layers.map((l) => l.heads));
	const choosers = [
		draw.choose("Layer", numbers(layers.map((l) => l.layer)), `${at}`, (v) => go(Number(v), head)),
		draw.choose("Head", numbers([...Array(most).keys()]), `${head}`, (v) => go(at, Number(v))),
		draw.choose(grid ? "Colour patches by" : "Colour tokens by", names(COLOURS), chosen.colour, (v) => { chosen.colour = v; colour(); }),
		draw.choose("Matrix", names(MATRICES), chosen.matrix, (v) => { chosen.matrix = v; load(); }),
	];
	const facts = el("p.readout", { id: "facts", "aria-live": "polite" });
	const note = el("p.soft");
	const pick = (i, j = i) => { select(i, j); follow({ token }); };
	const look = (i, j = i) => (i === null ? point(token, key) : point(i, j));
	const line = draw.tokenLine({ tokens: grid ? tokens.slice(0, prefix) : tokens, label: "Tokens; arrow keys choose one", pick, look });
	const image = grid && arrays.picture && pictureView();
	const sides = ["As it is", "Exclusive form"].map((name) => {
		const [list, formula] = [el("ol.largest", { "aria-label": `Ten largest of the row, ${name}` }), el("div.row.apart.soft")];
		const made = draw.walkable({ label: `${name}: a row per token; arrow keys move`, pick, look });
		const heading = el("h3", name);
		return { ...made, list, formula, heading, form: name, figure: el("figure", heading, formula, made.box, list) };
	});

	function pictureView() {
		const [height, width] = arrays.picture.shape;
		const pixels = new ImageData(width, height);
		pixels.data.fill(255);
		arrays.picture.data.forEach((x, i) => { pixels.data[i + Math.floor(i / 3)] = x; });
		const under = el("canvas", { width, height });
		under.getContext("2d").putImageData(pixels, 0, 0);
		const place = (r, c) => prefix + r * grid[1] + c;
		const made = draw.walkable({ label: "The picture in patches; arrow keys choose one", under,
			pick: (r, c) => pick(place(r, c)), look: (r, c) => look(r === null ? null : place(r, c)) });
		made.box.classList.add("picture");
		made.resize(...grid);
		return made;
	}

	function go(n, h) {
		[at, head] = [n, Math.min(h, layers[n].heads - 1)];
		[at, head].forEach((x, i) => { choosers[i].lastChild.value = x; });
		follow({ layer: layers[n].layer, head });
		load();
	}

	async function load() {
		const [, right, words] = MATRICES[chosen.matrix];
		const mine = asked = {};
		try {
			const names = [...new Set([chosen.matrix, right, "returns_exclusive"])];
			const bytes = await (await ask(`/api/live/${id}/heads/${layers[at].layer}/${head}?matrices=${names}`)).arrayBuffer();
			if (asked !== mine) return;
			performance.mark("outward-bytes");
			data = tensors(bytes);
		} catch (error) {
			return fail(error);
		}
		note.textContent = `${words} z is y without its part along the token’s own value.`;
		sides.forEach((side, n) => {
			side.name = [chosen.matrix, right][n];
			const signed = side.name !== "attention";
			side.colours = draw.scale(signed ? -1 : 0, 1, signed);
			side.resize(size(), size());
			draw.paint(side.canvas, data[side.name].data, size(), size(), signed);
			side.heading.textContent = `${side.form}: ${MATRICES[side.name.split("_")[0]][0]}`;
			put(side.formula, el("code", FORMULAS[side.name]), draw.legend(side.colours, (x) => (signed || !x ? say(x, "", 0) : "the row’s largest")));
		});
		select(token < 0 ? here.token ?? size() - 1 : token, key);
		colour();
		requestAnimationFrame(() => setTimeout(() => performance.measure("outward-head", "outward-bytes")));
	}

	function select(i, j) {
		token = Math.min(size() - 1, i);
		key = j < 0 || j >= size() ? token : j;
		point(token, key);
		line.choose(linked() ? token : -1);
		if (chosen.colour === "row") colour();
	}

	/** Shows a token and a key, without choosing them. */
	function point(i, j) {
		if (!data || i < 0 || i >= size()) return;
		for (const { name, list, colours, mark } of sides) {
			mark(i, j);
			const row = Array.from({ length: size() }, (_, k) => ({ value: cell(name, i, k), k }))
				.filter(({ value }) => known(value) && (value || name !== "attention")).sort((a, b) => b.value - a.value);
			draw.topList(list, row.slice(0, 10).map(({ value, k }) => ({
				name: patch(k) ? nameOf(k) : draw.marked(nameOf(k)), value, text: text(name, value), own: k === i,
				mark: [k === i && " itself", !sees(i, k) && " not seen by it"],
			})), colours,
				name === "attention" ? row[0]?.value : 1);
		}
		image?.mark(...(patch(i) || [-1, -1]));
		put(facts, words(i, j));
	}

	function words(i, j) {
		const of = (name) => data[name].data[i];
		const fact = (text) => el("b", text);
		const quoted = (k) => (patch(k) ? nameOf(k) : `“${visible(nameOf(k), true)}”`);
		const [left, right] = sides.map(({ name }) => `${FORMULAS[name]} = ${text(name, cell(name, i, j))}`);
		return [fact(`Token ${i}, ${quoted(i)}`), linked() && !known(ofHead("self_similarity", at, head)[i])
			? " sees only itself: there y = v, and the exclusive form returns nothing. "
			: [` gives itself ${draw.percent(of("self_weight"))} of its attention. As it is, `, fact(`cos(y, v) = ${say(of("self_similarity"), "", 2)}`),
				"; in the exclusive form ", fact(`cos(z, v) = ${say(cell("returns_exclusive", i, i), "", 2)}`), ", with ",
				fact(`|z| / |y| = ${say(of("size_exclusive") / of("size"), "", 2)}`), ". "],
		j !== i && `With token ${j}, ${quoted(j)}${sees(i, j) ? "" : ", not seen by it"}: ${left}, on the right ${right}.`];
	}

	function colour() {
		if (!data) return;
		const row = chosen.colour === "row";
		const weights = chosen.colour === "self_weight" || (row && chosen.matrix === "attention");
		const numbers = row ? [] : ofHead(chosen.colour, at, head);
		const value = (i) => (!linked() ? NaN : row ? cell(chosen.matrix, token, i) : numbers[i]);
		const colours = draw.scale(weights ? 0 : -1, weights && row ? data.attention_max.data[token] : 1, !weights);
		line.colour(value, colours);
		if (!image) return;
		const bytes = Uint8Array.from({ length: grid[0] * grid[1] }, (_, p) =>
			(known(value(prefix + p)) ? colours.at(value(prefix + p)) * (weights ? 255 : 254) : weights ? 0 : 255));
		draw.paint(image.canvas, bytes, ...grid, !weights);
	}

	/** Layers and heads of this input; a press goes there. */
	function overview() {
		const rows = layers.map((l, n) => Array.from({ length: l.heads }, (_, h) => (
			{ ...l, head: h, self_similarity: draw.mean([...ofHead("self_similarity", n, h)]) })));
		const [box, readout] = [el("div"), el("p.readout", { "aria-live": "polite" })];
		draw.grid(box, {
			rows, measure: "self_similarity", text: say, readout, cursor: { layer: layers[at].layer, head },
			colours: draw.domain(rows.flat().map((h) => h.self_similarity), "cosine"), open: (layer, h) => go(layerOf(layer), h),
		});
		return el("details", { open: "" }, el("summary", "cos(y, v) of this input"), box, readout);
	}

	output.classList.toggle("beside", alone === true);
	put(output, alone && overview(), el("div.row", choosers), (!grid || prefix > 0) && line.box, image && image.box, facts, note,
		el("div.sides", sides.map((side) => side.figure)));
	load();
}
