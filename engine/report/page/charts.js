// The page's two charts: memory over the step (SVG, so that it prints sharp) and the timeline (a canvas, since it has thousands of blocks).
// Helpers and `data` are those of plan_page.js, which comes behind.
'use strict';

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// About `count` round numbers from `low` to `high`, multiples of 1, 2 or 5 times a power of ten; of bytes, of two.
function ticks(low, high, count, binary = false) {
  const rough = (high - low) / Math.max(1, count);
  const base = binary ? 2 ** Math.floor(Math.log2(rough)) : 10 ** Math.floor(Math.log10(rough));
  const step = base * (binary ? (rough > base ? 2 : 1) : [1, 2, 5, 10].find((factor) => base * factor >= rough * 0.999));
  const all = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) all.push(at);
  return all;
}

// What stands at ticks of time: all in one unit, with the digits that their distance asks for.
function timeTicks(low, high, count) {
  const all = ticks(low, high, count), [unit, size] = timeUnit(high), step = all.length > 1 ? all[1] - all[0] : high - low;
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  return all.map((at) => [at, `${(at / size).toFixed(digits)} ${unit}`]);
}

// Index of the last of `sorted` that is not above `value`; 0 where all are.
function lastUpTo(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] <= value) low = middle + 1; else high = middle; }
  return Math.max(0, low - 1);
}

// Both charts begin at the same place, so that times stand above each other.
const LEFT = 118;
// Pixels across a sheet of paper, for both.
const PRINTED = 760;

// ---- Memory ----

function drawMemory() {
  const {limit, fullest, stages} = data.memory;
  const holder = h('div');
  let chosen = fullest;
  const chart = h('div', {class: 'chart'});
  const draw = () => {
    const stage = stages[chosen];
    holder.replaceChildren(chart, memoryNotes(stage, limit), h('div', {class: 'split'}, h('div', {}, memoryTable(stage)), h('div', {}, aliveTable(stage))));
    memoryChart(chart, stage, limit);
  };
  const choice = stageChoice(stages, fullest, (stage) => `${stage.stage}: ${bytesText(stage.peak)}${stage.stage === stages[fullest].stage ? ' (fullest)' : ''}`,
    (index) => { chosen = index; draw(); });
  show('memory', choice && h('div', {class: 'tools screen'}, choice), holder);
  draw();
  onResize(holder, draw);
  addEventListener('beforeprint', () => memoryChart(chart, stages[chosen], limit, PRINTED));
  addEventListener('afterprint', draw);
}

function memoryNotes(stage, limit) {
  return h('p', {class: 'soft small', style: {'margin-top': '0.5rem'}},
    `A rank${data.memory.stages.length > 1 ? ` of stage ${stage.stage}` : ''} allocates ${grouped(stage.peak)} bytes once, ${percent(stage.peak / limit)} of its limit of ${bytesText(limit)}. `,
    `Most is alive at instruction ${grouped(stage.instruction)} of ${stage.program}: ${stage.at}.`);
}

function memoryTable(stage) {
  const rows = CATEGORIES.map((name) => [[swatch(name), name], grouped(stage.by_category[name]), percent(stage.by_category[name] / stage.peak)]);
  return table([['at the peak', false], ['bytes', true], ['share', true]], rows, {full: true, foot: ['allocation', grouped(stage.peak), '100.0%']});
}

function aliveTable(stage) {
  if (stage.alive.length === 0) return [];
  const largest = stage.alive[0].bytes;
  return [table([[`alive then, of ${grouped(stage.num_alive)} buffers`, false], ['category', false], ['bytes', true], ['', false]], stage.alive.map((one) => [h('span', {class: 'mono'}, one.name), [swatch(one.category), one.category],
      grouped(one.bytes), cell(h('div', {class: 'mini'}, h('span', {style: {width: percent(one.bytes / largest), '--c': `var(--${one.category})`}})))]), {full: true})];
}

function memoryChart(chart, stage, limit, wide = chart.clientWidth) {
  const {at, peak_at: peakAt, live, end, in_time: inTime} = stage.curve;
  const width = Math.max(320, wide), height = Math.round(Math.min(420, Math.max(240, width * 0.3)));
  const left = LEFT, right = 1, top = 40, bottom = 34;
  const withLimit = limit <= stage.peak * 1.8;
  const most = (withLimit ? Math.max(limit, stage.peak) : stage.peak) * 1.06;
  const x = (value) => left + (width - left - right) * (end > 0 ? value / end : 0), y = (bytes) => height - bottom - (height - top - bottom) * (bytes / most);
  const value = (name, i) => Array.isArray(live[name]) ? live[name][i] : live[name] || 0;
  const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `memory over the step, at most ${bytesText(stage.peak)} of ${bytesText(limit)}; the table beside has the numbers of the peak`});
  for (const tick of ticks(0, most, 4, true)) {
    picture.append(svg('line', {x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: 'var(--line)'}),
      svg('text', {x: left - 8, y: y(tick) + 4, 'text-anchor': 'end'}, bytesText(tick)));
  }
  const sums = new Array(at.length).fill(0);
  for (const name of CATEGORIES) {
    const below = sums.slice();
    for (let i = 0; i < at.length; ++i) sums[i] += value(name, i);
    if (!sums.some((sum, i) => sum > below[i])) continue;
    let path = '', back = '';
    for (let i = 0; i < at.length; ++i) {
      const from = x(at[i]).toFixed(1), to = x(i + 1 < at.length ? at[i + 1] : end).toFixed(1);
      path += `${i ? 'L' : 'M'}${from} ${y(sums[i]).toFixed(1)}L${to} ${y(sums[i]).toFixed(1)}`;
      back = `L${to} ${y(below[i]).toFixed(1)}L${from} ${y(below[i]).toFixed(1)}` + back;
    }
    picture.append(svg('path', {d: path + back + 'Z', fill: `var(--${name})`}));
  }
  const columns = Math.max(3, Math.min(12, width / 130));
  for (const [tick, text] of inTime ? timeTicks(0, end, columns) : ticks(0, end, columns).map((at) => [at, grouped(at)]))
    picture.append(svg('line', {x1: x(tick), x2: x(tick), y1: height - bottom, y2: height - bottom + 5, stroke: 'var(--soft)'}),
      svg('text', {x: x(tick), y: height - bottom + 19, 'text-anchor': tick === 0 ? 'start' : x(tick) > width - 30 ? 'end' : 'middle'}, text));
  picture.append(svg('line', {x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, stroke: 'var(--soft)'}));
  const line = (bytes, text, colour, dashes, above) => picture.append(svg('line', {x1: left, x2: width - right, y1: y(bytes), y2: y(bytes), stroke: colour, 'stroke-width': 1.5, 'stroke-dasharray': dashes}),
    svg('text', {x: width - right, y: y(bytes) + (above ? -6 : 15), 'text-anchor': 'end', class: 'strong'}, text));
  line(stage.peak, `allocated ${bytesText(stage.peak)}`, 'var(--ink)', '2 3', true);
  if (withLimit) line(limit, `limit ${bytesText(limit)}`, 'var(--bad)', '6 4', limit >= stage.peak);
  if (peakAt !== null) {
    const high = y(stage.curve.peak_bytes), px = x(peakAt), text = 'peak: ' + stage.at, flip = px + 6.8 * text.length > width && px > width / 2;
    picture.append(svg('line', {x1: px, x2: px, y1: height - bottom, y2: 20, stroke: 'var(--ink)'}), svg('circle', {cx: px, cy: high, r: 4, fill: 'var(--paper)', stroke: 'var(--ink)', 'stroke-width': 2}),
      svg('text', {x: px + (flip ? 4 : -4), y: 13, class: 'strong', 'text-anchor': flip ? 'end' : 'start'}, text));
  }
  const cursor = svg('line', {y1: top, y2: height - bottom, stroke: 'var(--ink)', 'stroke-width': 1, visibility: 'hidden'});
  picture.append(cursor);
  picture.addEventListener('mousemove', (event) => {
    const box = picture.getBoundingClientRect(), px = (event.clientX - box.left) * width / box.width;
    const t = Math.min(end, Math.max(0, (px - left) / (width - left - right) * end)), i = lastUpTo(at, t);
    cursor.setAttribute('x1', x(t)); cursor.setAttribute('x2', x(t)); cursor.setAttribute('visibility', 'visible');
    showTip(event, [h('b', {}, `${inTime ? timeText(t) : 'instruction ' + grouped(t)}: ${bytesText(sums[i])}`),
      h('table', {}, CATEGORIES.filter((name) => value(name, i) > 0).reverse().map((name) => h('tr', {}, h('td', {}, swatch(name), name), h('td', {class: 'n'}, bytesText(value(name, i))))))]);
  });
  picture.addEventListener('mouseleave', () => { cursor.setAttribute('visibility', 'hidden'); hideTip(); });
  chart.replaceChildren(picture, h('div', {class: 'soft small', style: {'text-align': 'right', 'margin-top': '-0.2rem'}}, inTime ? 'predicted time of the step' : 'instruction of the step'));
}

// Calls `draw` when the element's width has changed.
function onResize(element, draw) {
  let width = element.clientWidth;
  new ResizeObserver(() => { if (Math.abs(element.clientWidth - width) > 1) { width = element.clientWidth; draw(); } }).observe(element);
}

// ---- Timeline ----

const WORK = {forward: 'forward', recompute: 'recomputed forward', backward: 'backward', weight: 'weight part of backward', unit: 'packing and sums of units', update: 'optimizer',
  tensor: 'tensor collectives', data: 'data collectives', pipeline: 'pipeline messages', copy: 'copies'};

// Black or white, whichever contrasts more (relative luminance, WCAG 2).
function readableOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? '#0c1014' : '#ffffff';
}

// Blocks of a row are numbers one behind the other: gap to the block before, duration (both ns), label, micro-batch (-1: none),
// and of blocks that stand for several instructions their number and the ns in which one of them runs.
function unpackRow(row) {
  const size = row.summed ? 6 : 4, count = row.blocks.length / size;
  const begin = new Float64Array(count), end = new Float64Array(count), label = new Int32Array(count), batch = new Int32Array(count);
  let clock = 0;
  for (let i = 0; i < count; ++i) {
    begin[i] = clock + row.blocks[i * size];
    clock = end[i] = begin[i] + row.blocks[i * size + 1];
    label[i] = row.blocks[i * size + 2];
    batch[i] = row.blocks[i * size + 3];
  }
  return {...row, count, begin, end, label, batch, number: (i) => row.summed ? row.blocks[i * size + 4] : 1, busy: (i) => row.summed ? row.blocks[i * size + 5] : end[i] - begin[i]};
}

class Timeline {
  constructor(canvas, stages, step) {
    Object.assign(this, {canvas, step, from: 0, to: step, hovered: null});
    const dense = stages.length > 8, tall = stages.length <= 2;
    this.left = LEFT;
    this.rows = [];
    let at = 4;
    for (const stage of stages) {
      const first = at;
      for (const row of stage.rows) {
        const height = row.stream === 'actions' ? (dense ? 13 : 18) : row.stream === 'copy' ? (dense ? 4 : 10) : dense ? 7 : tall ? 20 : 13;
        this.rows.push({...unpackRow(row), stage: stage.stage, top: at, height, named: !dense || row.stream === 'actions'});
        at += height + (row.stream === 'actions' ? 1 : 2);
      }
      this.rows.filter((row) => row.stage === stage.stage)[0].caption = stages.length > 1 ? `stage ${stage.stage}` : '';
      at += first === at ? 0 : dense ? 3 : 10;
    }
    this.height = at + 24;
    this.colours();
    this.listen();
    this.draw();
  }

  colours() {
    this.colour = Object.fromEntries(Object.keys(WORK).map((work) => [work, css(work)]));
    this.on = Object.fromEntries(Object.entries(this.colour).map(([work, colour]) => [work, readableOn(colour)]));
    for (const name of ['ink', 'soft', 'line', 'faint', 'paper', 'accent']) this.colour[name] = css(name);
  }

  x(t) { return this.left + (this.width - this.left - 1) * (t - this.from) / (this.to - this.from); }
  time(x) { return this.from + (x - this.left) / (this.width - this.left - 1) * (this.to - this.from); }

  draw(width = this.canvas.parentElement.clientWidth, scale = Math.max(2, devicePixelRatio || 1)) {
    this.width = Math.max(320, width);
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.aspectRatio = `${this.width} / ${this.height}`;
    const g = this.g = this.canvas.getContext('2d');
    g.scale(scale, scale);
    g.clearRect(0, 0, this.width, this.height);
    this.font = getComputedStyle(document.body).fontFamily;
    this.drawAxis();
    for (const row of this.rows) this.drawRow(row);
    if (this.drag) {
      g.fillStyle = this.colour.accent; g.globalAlpha = 0.18;
      g.fillRect(Math.min(this.drag.x0, this.drag.x1), 0, Math.abs(this.drag.x1 - this.drag.x0), this.height - 22);
      g.globalAlpha = 1;
    }
    this.canvas.dispatchEvent(new CustomEvent('drawn'));
  }

  drawAxis() {
    const g = this.g, bottom = this.height - 20;
    g.font = `12px ${this.font}`; g.textBaseline = 'top';
    for (const [tick, text] of timeTicks(this.from, this.to, Math.max(3, Math.min(12, this.width / 130)))) {
      const x = Math.round(this.x(tick)) + 0.5;
      g.strokeStyle = this.colour.line; g.lineWidth = 1;
      g.beginPath(); g.moveTo(x, 0); g.lineTo(x, bottom + 4); g.stroke();
      const wide = g.measureText(text).width;
      g.fillStyle = this.colour.soft; g.textAlign = 'left';
      g.fillText(text, Math.max(this.left, Math.min(x - wide / 2, this.width - wide)), bottom + 6);
    }
  }

  drawRow(row) {
    const g = this.g;
    g.font = `12px ${this.font}`; g.textBaseline = 'middle'; g.textAlign = 'left';
    if (row.caption) { g.fillStyle = this.colour.ink; g.fillText(row.caption, 0, row.top + row.height / 2 + 0.5); }
    if (row.named) { g.fillStyle = this.colour.soft; g.textAlign = 'right'; g.fillText({communication: 'comm.', tensor_parallel: 'tensor', actions: ''}[row.stream] ?? row.stream, this.left - 8, row.top + row.height / 2 + 0.5); }
    g.fillStyle = this.colour.faint;
    g.fillRect(this.left, row.top, this.width - this.left, row.height);
    g.save(); g.beginPath(); g.rect(this.left, row.top, this.width - this.left, row.height); g.clip();
    let drawnTo = -1;  // what is thinner than a pixel is drawn once a pixel
    for (let i = lastUpTo(row.begin, this.from); i < row.count && row.begin[i] <= this.to; ++i) {
      const x0 = this.x(row.begin[i]), x1 = this.x(row.end[i]);
      if (x1 < drawnTo + 0.5 || x1 < this.left) continue;
      const from = Math.max(x0, this.left), wide = Math.max(0.5, x1 - from), gap = wide > 4 ? 0.75 : 0;
      const work = data.timeline.labels[row.label[i]][1];
      g.fillStyle = this.colour[work];
      g.globalAlpha = row.stream === 'actions' && row.batch[i] % 2 === 1 ? 0.8 : 1;
      g.fillRect(from, row.top, wide - gap, row.height);
      g.globalAlpha = 1;
      drawnTo = x1;
      if (wide > 15 && row.height >= 12) this.writeIn(row, i, from, wide, work);
    }
    if (this.hovered && this.hovered.row === row) {
      const i = this.hovered.i, x0 = Math.max(this.left, this.x(row.begin[i])), x1 = Math.max(x0 + 1, this.x(row.end[i]));
      g.strokeStyle = this.colour.ink; g.lineWidth = 2; g.strokeRect(x0 + 1, row.top + 1, Math.max(1, x1 - x0 - 2), row.height - 2);
    }
    g.restore();
  }

  writeIn(row, i, from, wide, work) {
    const g = this.g, label = data.timeline.labels[row.label[i]][0];
    const short = {forward: 'F', backward: 'B', weight: 'W', recompute: 'R'}[work];
    const text = row.stream === 'actions' ? (short && row.batch[i] >= 0 ? short + row.batch[i] : label) : label;
    const shown = Math.min(this.width, from + wide) - from;
    g.font = `11px ${this.font}`;
    if (g.measureText(text).width > shown - 5) return;
    g.fillStyle = this.on[work];
    g.textAlign = 'left';
    g.fillText(text, from + 3, row.top + row.height / 2 + 0.5);
  }

  blockAt(px, py) {
    const row = this.rows.find((one) => py >= one.top - 1 && py <= one.top + one.height + 1);
    if (!row || px < this.left || row.count === 0) return null;
    const t = this.time(px), near = (this.to - this.from) / (this.width - this.left) * 1.5;
    const i = lastUpTo(row.begin, t + near);
    return row.begin[i] - near <= t && t <= row.end[i] + near ? {row, i} : null;
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    const span = Math.min(this.step, Math.max((this.to - this.from) * factor, this.step * 1e-6));
    this.look(around - span * (around - this.from) / (this.to - this.from), span);
  }
  look(from, span) {
    this.from = Math.max(0, Math.min(from, this.step - span));
    this.to = this.from + span;
    this.hovered = null;
    this.draw();
  }
  pan(share) { this.look(this.from + share * (this.to - this.from), this.to - this.from); }

  listen() {
    const canvas = this.canvas, place = (event) => { const box = canvas.getBoundingClientRect(); return [(event.clientX - box.left) * this.width / box.width, (event.clientY - box.top) * this.height / box.height]; };
    canvas.addEventListener('pointerdown', (event) => { const [x] = place(event); this.drag = {x0: x, x1: x}; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener('pointermove', (event) => {
      const [x, y] = place(event);
      if (this.drag) { this.drag.x1 = x; hideTip(); this.draw(); return; }
      const found = this.blockAt(x, y);
      if ((found && found.i) !== (this.hovered && this.hovered.i) || (found && found.row) !== (this.hovered && this.hovered.row)) { this.hovered = found; this.draw(); }
      if (found) showTip(event, this.describe(found)); else hideTip();
    });
    canvas.addEventListener('pointerup', () => {
      const drag = this.drag;
      this.drag = null;
      if (drag && Math.abs(drag.x1 - drag.x0) > 5) { const a = this.time(Math.max(this.left, Math.min(drag.x0, drag.x1))), b = this.time(Math.max(drag.x0, drag.x1)); this.look(a, Math.max(b - a, this.step * 1e-6)); }
    });
    canvas.addEventListener('pointercancel', () => { this.drag = null; });
    canvas.addEventListener('pointerleave', () => { hideTip(); if (this.hovered) { this.hovered = null; this.draw(); } });
    canvas.addEventListener('dblclick', () => this.look(0, this.step));
    canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      if (event.shiftKey) this.pan((event.deltaY || event.deltaX) / 1000); else this.zoom(Math.exp(event.deltaY / 400), this.time(place(event)[0]));
    }, {passive: false});
    canvas.addEventListener('keydown', (event) => {
      const act = {ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), '+': () => this.zoom(0.6), '=': () => this.zoom(0.6), '-': () => this.zoom(1 / 0.6), '0': () => this.look(0, this.step), Home: () => this.look(0, this.step)}[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { this.colours(); this.draw(); });
    addEventListener('beforeprint', () => { this.colours(); this.draw(PRINTED, 4); });
    addEventListener('afterprint', () => { this.colours(); this.draw(); });
  }

  describe({row, i}) {
    const [label, work] = data.timeline.labels[row.label[i]], number = row.number(i), took = row.end[i] - row.begin[i];
    const lines = [h('b', {}, label + (row.batch[i] >= 0 ? `, micro-batch ${row.batch[i]}` : '')), h('br'),
      `${WORK[work]}${this.rows.some((one) => one.caption) ? `, stage ${row.stage}` : ''}`, h('br'),
      `begins ${timeText(row.begin[i])}, takes ${timeText(took)}`];
    if (number > 1) lines.push(h('br'), `${grouped(number)} instructions, one runs ${percent(took > 0 ? row.busy(i) / took : 1, 0)} of that time`);
    return lines;
  }
}

function drawTimeline() {
  const {step_ns: step, stages, labels, left_out: leftOut} = data.timeline;
  const used = new Set(stages.flatMap((stage) => stage.rows.flatMap((row) => row.blocks.filter((_, i) => i % (row.summed ? 6 : 4) === 2).map((label) => labels[label][1]))));
  const canvas = h('canvas', {tabindex: 0, role: 'img', 'aria-label': `timeline of ${stages.length} stage${stages.length > 1 ? 's' : ''} over ${timeText(step)}; drag to zoom, arrow keys move, plus and minus zoom, 0 shows the whole step`});
  const shown = h('span', {class: 'soft small'});
  const button = (text, name, act) => h('button', {type: 'button', 'aria-label': name, title: name, onclick: act}, text);
  let timeline = null;
  const tools = h('div', {class: 'tools screen'},
    h('span', {class: 'group'}, button('−', 'zoom out', () => timeline.zoom(1 / 0.5)), button('+', 'zoom in', () => timeline.zoom(0.5)), button('←', 'earlier', () => timeline.pan(-0.5)), button('→', 'later', () => timeline.pan(0.5)), button('Whole step', 'show the whole step', () => timeline.look(0, step))),
    shown, h('span', {class: 'spring'}), h('span', {class: 'soft small'}, 'Drag to zoom in, double-click for all, point for details.'));
  const summed = stages.filter((stage) => stage.rows.some((row) => row.summed && row.stream !== 'actions')).length;
  const notes = [leftOut > 0 && `${grouped(leftOut)} more stages are left out. `,
    summed > 0 && `${summed === stages.length ? 'Instructions' : `On ${grouped(summed)} of ${grouped(stages.length)} stages, instructions`} of the same pass are drawn as one block.`].filter(Boolean);
  show('timeline', tools, h('div', {class: 'chart'}, canvas),
    h('div', {class: 'legend', style: {'margin-top': '0.5rem'}}, Object.entries(WORK).filter(([work]) => used.has(work)).map(([work, name]) => h('span', {}, swatch(work), name))),
    notes.length > 0 && h('p', {class: 'soft small'}, notes));
  canvas.addEventListener('drawn', () => { shown.textContent = timeline === null || timeline.to - timeline.from >= step ? `whole step, ${timeText(step)}` : `${timeText(timeline.from, timeUnit(timeline.to))} to ${timeText(timeline.to)}`; });
  timeline = new Timeline(canvas, stages, step);
  shown.textContent = `whole step, ${timeText(step)}`;
  onResize(canvas.parentElement, () => timeline.draw());
}
