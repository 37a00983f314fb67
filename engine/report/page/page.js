// The page of a plan: reads the object in #data and fills the sections. Everything a user wrote reaches the page as text, never as markup.
const data = JSON.parse(document.getElementById('data').textContent);
const CATEGORIES = ['parameters', 'optimizer', 'gradients', 'activations', 'communication', 'workspace', 'inputs'];
const PARTS = [['compute', 'computing'], ['optimizer_time', 'optimizer'], ['exposed', 'exposed communication'], ['bubble', 'bubble'], ['input', 'input'], ['offload', 'moves']];

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (name === 'style') for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? '' : value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// ---- Numbers ----

const grouped = (number) => Math.round(number).toLocaleString('en-US');
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + '%';
function scaled(value, step, units) {
  let unit = 0;
  while (Math.abs(value) >= step && unit + 1 < units.length) { value /= step; ++unit; }
  return (unit === 0 ? value.toFixed(0) : value.toFixed(1)) + '\u00a0' + units[unit];
}
const bytesText = (bytes) => scaled(bytes, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
const TIMES = [['s', 1e9], ['ms', 1e6], ['µs', 1e3], ['ns', 1]];
// The unit in which `ns` has one to three digits before the point.
const timeUnit = (ns) => TIMES.find(([, size]) => Math.abs(ns) >= size) || TIMES[3];
function timeText(ns, [unit, size] = timeUnit(ns)) {
  const value = ns / size;
  return value.toFixed(unit === 'ns' ? 0 : Math.abs(value) >= 100 ? 1 : Math.abs(value) >= 10 ? 2 : 3) + '\u00a0' + unit;
}
// All of a column in one unit, with as many digits.
function timeColumn(largest) {
  const [unit, size] = timeUnit(largest);
  const digits = largest / size >= 100 ? 1 : largest / size >= 10 ? 2 : 3;
  return {unit, text: (ns) => (ns / size).toFixed(digits)};
}

// ---- Pieces ----

const swatch = (name, hatched) => h('span', {class: hatched ? 'swatch hatched' : 'swatch', style: {'--c': `var(--${name})`}, 'aria-hidden': 'true'});
const cell = (content, attributes) => h('td', attributes, content);
const number = (content) => cell(content, {class: 'n'});

// Columns: [head, is it a number]. Rows: arrays of cells or contents; `foot`: the last one adds up the others.
function table(columns, rows, {full = false, foot = null, caption = null} = {}) {
  const line = (row) => h('tr', {class: row.chosen ? 'chosen' : null}, row.map((content, i) => content instanceof HTMLTableCellElement ? content
    : i === 0 ? h('th', {scope: 'row'}, content) : h('td', {class: columns[i][1] ? 'n' : null}, content)));
  return h('div', {class: 'scroll'}, h('table', {class: full ? 'full' : null}, caption && h('caption', {}, caption),
    h('thead', {}, h('tr', {}, columns.map(([head, right]) => h('th', {scope: 'col', class: right ? 'n' : null}, head)))),
    h('tbody', {}, rows.map(line)), foot && h('tfoot', {}, line(foot))));
}

function show(id, ...content) {
  const section = document.getElementById(id);
  section.querySelector('.body').replaceChildren(...content.flat(Infinity).filter(Boolean));
  section.hidden = false;
}

// A choice among stages; nothing where there is one. `draw` gets the index.
function stageChoice(stages, chosen, noteOf, draw) {
  if (stages.length < 2) return null;
  return h('label', {class: 'small'}, h('span', {class: 'soft'}, 'Stage '),
    h('select', {onchange: (event) => draw(Number(event.target.value))},
      stages.map((stage, i) => h('option', {value: i, selected: i === chosen}, noteOf(stage)))));
}

const tip = document.getElementById('tip');
function showTip(event, content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + 'px';
  tip.style.top = (event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18) + 'px';
}
const hideTip = () => { tip.hidden = true; };
addEventListener('scroll', hideTip, {passive: true});

// ---- Sections ----

function drawHead() {
  const gauge = (share) => h('div', {class: share > 1 ? 'gauge over-limit' : 'gauge', role: 'img', 'aria-label': percent(share) + ' of the limit'},
    h('span', {style: {width: percent(Math.min(1, share))}}));
  document.getElementById('head').replaceChildren(
    h('div', {class: 'over'}, h('span', {}, 'Training plan'), h('span', {}, 'plan ', h('code', {id: 'hash'}, data.hash))),
    h('h1', {}, data.name),
    h('p', {class: 'lead', id: 'strategy'}, data.strategy),
    h('p', {class: 'soft'}, data.alternatives ? `chosen among ${grouped(data.alternatives.rows.length + data.alternatives.left_out)} ways that were weighed; why stands under Alternatives` : data.why),
    data.notice ? h('div', {class: 'notice', id: 'notice'}, h('b', {}, 'Does not fit. '), data.notice) : '',
    h('div', {class: 'figures'}, data.figures.map((figure) => h('div', {class: 'figure', id: 'figure-' + figure.id},
      h('span', {class: 'name'}, figure.name), h('span', {class: 'value'}, figure.value, figure.unit ? h('small', {}, '\u00a0' + figure.unit) : ''),
      figure.share !== undefined ? gauge(figure.share) : null, h('span', {class: 'note'}, figure.note)))),
    h('dl', {class: 'facts'}, data.facts.map(([name, text]) => [h('dt', {}, name), h('dd', {}, text)])));
}

function partsBar(stage, whole, tall) {
  const told = PARTS.filter(([part]) => stage[part] > 0).map(([part, name]) => `${name} ${percent(stage[part] / whole)}`).join(', ');
  return h('div', {class: tall ? 'bar tall' : 'bar', role: 'img', 'aria-label': told}, PARTS.map(([part, name]) => stage[part] > 0 &&
    h('span', {class: part === 'bubble' ? 'hatched' : null, style: {'--c': `var(--${part})`, width: percent(stage[part] / whole, 3)},
      onmousemove: (event) => showTip(event, [h('b', {}, name), ` ${timeText(stage[part])}, ${percent(stage[part] / whole)}`]), onmouseleave: hideTip})));
}

function drawTime() {
  const {step_ns: step, stages, slowest} = data.time;
  const used = PARTS.filter(([part]) => stages.some((stage) => stage[part] > 0));
  const column = timeColumn(step);
  const head = ([part, name]) => [[swatch(part, part === 'bubble'), name], true];
  if (stages.length === 1) {
    const rows = used.map(([part, name]) => [[swatch(part, part === 'bubble'), name], column.text(stages[0][part]), percent(stages[0][part] / step)]);
    show('time', partsBar(stages[0], step, true), h('div', {style: {height: '0.7rem'}}),
      table([['', false], [column.unit, true], ['share', true]], rows, {foot: ['step', column.text(step), '100.0%']}));
    return;
  }
  const rows = stages.map((stage, i) => Object.assign([h('span', {class: 'nowrap'}, `${stage.stage}${i === slowest ? ' (busiest)' : ''}`), cell(partsBar(stage, step), {class: 'bars'}),
    ...used.map(([part]) => column.text(stage[part]))], {chosen: i === slowest}));
  show('time', h('p', {class: 'soft small'}, `Times in ${column.unit}, of a rank of each stage; a row adds up to the step of ${timeText(step)}.`),
    table([['stage', false], ['', false], ...used.map(head)], rows, {full: true}));
}

function drawKernels() {
  const {kernels, step_ns: step, stages} = data.time, shown = kernels.slice(0, 10), column = timeColumn(kernels[0].ns);
  show('kernels', table([['kernel', false], ['launches', true], [`time, ${column.unit}`, true], ['of the step', true], ['', false], ['bound by', false]],
    shown.map((one) => [h('span', {class: 'mono'}, one.op), grouped(one.count), column.text(one.ns), percent(one.ns / step),
      cell(h('div', {class: 'mini'}, h('span', {style: {width: percent(one.ns / kernels[0].ns)}}))), one.bound]), {full: true}),
    h('p', {class: 'soft small', style: {'margin-top': '0.5rem'}}, stages.length > 1 ? 'Of a rank of the busiest stage.' : 'Of a rank.',
      kernels.length > shown.length ? ` ${kernels.length - shown.length} more kernels take ${timeText(kernels.slice(shown.length).reduce((all, one) => all + one.ns, 0))}.` : ''));
}

function drawCommunication() {
  const {stages, most, shown, others} = data.communication;
  const holder = h('div');
  const draw = (i) => {
    const rows = stages[i].rows;
    if (rows.length === 0) { holder.replaceChildren(h('p', {}, 'None: a rank of this stage sends nothing.')); return; }
    const timed = rows[0].ns !== undefined;
    const sum = (key) => rows.reduce((all, row) => all + row[key], 0);
    const column = timeColumn(timed ? Math.max(...rows.map((row) => row.ns)) : 1);
    const times = (row) => timed ? [column.text(row.ns), column.text(row.exposed_ns)] : [];
    holder.replaceChildren(table(
      [['axis', false], ['collective', false], ['count', true], ['bytes sent', true], ...(timed ? [[`time, ${column.unit}`, true], [`exposed, ${column.unit}`, true]] : [])],
      rows.map((row) => [row.axis, row.collective, grouped(row.count), grouped(row.bytes), ...times(row)]),
      {full: true, foot: ['all', '', grouped(sum('count')), grouped(sum('bytes')), ...(timed ? [column.text(sum('ns')), column.text(sum('exposed_ns'))] : [])]}));
  };
  draw(shown);
  const more = others.map((other) => [h('h3', {}, `Program ${other.program}, every ${grouped(other.every)} steps`),
    table([['axis', false], ['collective', false], ['count', true], ['bytes sent', true]],
      other.rows.map((row) => [row.axis, row.collective, grouped(row.count), grouped(row.bytes)]), {full: true})]);
  const choice = stageChoice(stages, shown, (stage) => `${stage.stage}${stage.stage === most ? ' (sends most)' : ''}${stage.stage === data.time.slowest ? ' (busiest)' : ''}`, draw);
  show('communication', choice && h('div', {class: 'tools screen'}, choice), holder,
    h('p', {class: 'soft small', style: {'margin-top': '0.5rem'}}, 'Of a rank and step, as rings send it. Exposed is what no kernel of that rank hides.',
      stages.length > 1 ? ' Times are known of the busiest stage.' : ''), more);
}

function drawLifecycle() {
  show('lifecycle', table([['at', false], ['in the allocation, bytes', true], ['beside it, bytes', true], ['what that is', false]],
    data.lifecycle.map((one) => [one.point, grouped(one.inside_bytes), grouped(one.bytes), h('span', {class: 'soft small'}, one.what)]), {full: true}),
    h('p', {class: 'soft small', style: {'margin-top': '0.5rem'}}, 'Of the fullest rank: what is alive of its one allocation when most is, and the host memory that is taken beside it.'));
}

function drawAlternatives() {
  const {rows, left_out: leftOut} = data.alternatives;
  const taken = rows.find((row) => row.rejected === ''), slowest = Math.max(1, ...rows.map((row) => row.ns)), column = timeColumn(slowest), limit = data.memory.limit;
  const against = (row) => row === taken || !taken || !row.ns ? '' : (row.ns >= taken.ns ? '+' : '−') + percent(Math.abs(row.ns / taken.ns - 1));
  show('alternatives', h('p', {}, data.why), table(
    [['strategy', false], [`step, ${column.unit}`, true], ['', false], ['to the chosen', true], ['memory', true], ['', false], ['why not', false]],
    rows.map((row) => Object.assign([row.text, row.ns ? column.text(row.ns) : '–',
      cell(h('div', {class: 'mini'}, h('span', {style: {width: percent(row.ns / slowest)}}))), against(row), bytesText(row.bytes),
      cell(h('div', {class: 'mini', title: `${percent(row.bytes / limit)} of the limit`}, h('span', {style: {width: percent(Math.min(1, row.bytes / limit)), '--c': row.bytes > limit ? 'var(--bad)' : 'var(--activations)'}}))),
      h('span', {class: 'small'}, row.rejected === '' ? 'chosen' : h('span', {class: 'soft'}, row.rejected, row.basis === 'scored' ? ' (scored, not planned)' : ''))], {chosen: row === taken})), {full: true}),
    leftOut > 0 && h('p', {class: 'soft small'}, `${grouped(leftOut)} more are left out.`));
}

function drawUnits() {
  const {rows: units, several_stages: several, left_out: leftOut} = data.units;
  const columns = [['unit', false], ['holds', false], ['tensors', true], ['elements', true], ['states', false], ['weights', false], ['gradients', false], ['collectives in a step', false]];
  if (several) columns.splice(1, 0, ['stage', false]);
  const rows = units.map((unit) => {
    const row = [h('span', {class: 'nowrap'}, unit.name, unit.count > 1 ? h('span', {class: 'soft'}, ` (${grouped(unit.count)})`) : ''), h('span', {class: 'mono'}, unit.holds), grouped(unit.tensors), grouped(unit.elements), unit.states, unit.weights, unit.gradients, unit.collectives];
    if (several) row.splice(1, 0, unit.stages);
    return row;
  });
  show('units', h('p', {class: 'soft small'}, 'What a rank holds of each unit, and what moves it. Units that are alike share a row.'), table(columns, rows, {full: true}),
    leftOut > 0 && h('p', {class: 'soft small'}, `${grouped(leftOut)} more rows are left out.`));
}

function drawPipeline() {
  const {schedule, slots, bubble, chunks, picture} = data.pipeline;
  show('pipeline', h('p', {}, `Schedule ${schedule}: ${grouped(slots)} slots, of which ${percent(bubble)} are bubble where a forward, an input part and a weight part take one each.`),
    table([['chunk', false], ['stage', true], ['parts of the model', false]], chunks.map((chunk, i) => [String(i), String(chunk.stage), h('span', {class: 'mono'}, chunk.parts)])),
    picture && h('pre', {style: {'margin-top': '0.8rem'}, 'aria-label': 'the schedule in time slots'}, picture));
}

function drawJob() {
  show('job', h('div', {class: 'job'}, data.job.map(([text, from]) =>
    h('div', {class: from === 'default' ? 'row default' : 'row'}, h('span', {class: 'text'}, text), h('span', {class: 'from'}, from)))));
}

drawHead();
drawTime();
drawTimeline();
if (data.time.kernels.length) drawKernels();
drawMemory();
drawCommunication();
if (data.lifecycle) drawLifecycle();
if (data.alternatives) drawAlternatives();
drawUnits();
if (data.pipeline) drawPipeline();
show('explicit', h('p', {class: 'soft small'}, 'In a job file this gives the same plan on as many ranks.'), h('pre', {}, data.explicit));
drawJob();
document.documentElement.dataset.drawn = 'yes';
