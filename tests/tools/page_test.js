// Behind a page of `trainer plan --html`, with what `--json` said of the same plan in #expected: does what a person might do, and says in
// <html data-failed="…"> what is not as it should be.
(() => {
  const root = document.documentElement, failed = [];
  const check = (good, what) => { if (!good) failed.push(what); };
  const plan = JSON.parse(document.getElementById('expected').textContent);
  const grouped = (number) => number.toLocaleString('en-US');
  const text = () => document.body.innerText + document.title;

  check(root.dataset.drawn === 'yes', 'the page was not drawn to its end');
  check(root.scrollWidth <= innerWidth, `${root.scrollWidth} pixels wide in a window of ${innerWidth}`);
  const facts = [plan.name, plan.hash, grouped(plan.memory.peak_bytes), `${plan.batch.global} samples`, 'Memory over the step', 'Communication', 'Units of parameters', 'The job, with every default'];
  for (const one of plan.communication_by_stage[plan.predicted.slowest_stage]) facts.push(grouped(one.bytes));
  facts.push('Where the step’s time goes', 'Timeline', 'Kernels');
  if (plan.alternatives && plan.alternatives.length) facts.push('Alternatives');
  for (const fact of facts) check(text().includes(fact), `“${fact}” is missing`);
  check(text().includes('Does not fit') === !plan.memory.fits, 'whether it fits');
  check(document.querySelectorAll('h1').length === 1 && document.querySelector('h1').textContent === plan.name, 'the heading is the job’s name');
  for (const wrong of ['undefined', 'NaN', '[object', 'Infinity']) check(!text().includes(wrong), `“${wrong}” is shown`);

  const tip = document.getElementById('tip');
  const point = (element, type, x, y) => {
    const box = element.getBoundingClientRect();
    element.dispatchEvent(new PointerEvent(type, {clientX: box.left + x * box.width, clientY: box.top + y, bubbles: true, pointerId: 1}));
  };
  const canvas = document.querySelector('canvas');
  {
    const pixels = () => canvas.toDataURL();
    const whole = pixels();
    canvas.setPointerCapture = () => {};
    for (const key of ['+', 'ArrowRight', '-', 'ArrowLeft']) canvas.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    canvas.dispatchEvent(new KeyboardEvent('keydown', {key: '0', bubbles: true}));
    check(pixels() === whole, 'zooming out again shows the whole step');
    for (const type of ['pointerdown', 'pointermove', 'pointerup']) point(canvas, type, type === 'pointerdown' ? 0.3 : 0.5, 12);
    check(pixels() !== whole, 'dragging zooms');
    const told = new Set();
    for (let y = 4; y < canvas.clientHeight - 24; y += 4) for (let x = 0.12; x < 1; x += 0.02) { point(canvas, 'pointermove', x, y); if (!tip.hidden) told.add(tip.textContent); }
    check(told.size > 3 && [...told].every((one) => /begins .*takes /.test(one)), 'blocks say what they are');
    canvas.dispatchEvent(new MouseEvent('dblclick'));
    point(canvas, 'pointerleave', 0, 0);
    check(pixels() === whole, 'a double click shows the whole step');
  }
  const chart = document.querySelector('#memory svg'), box = chart.getBoundingClientRect();
  chart.dispatchEvent(new MouseEvent('mousemove', {clientX: box.left + box.width / 2, clientY: box.top + 50}));
  check(!tip.hidden && /parameters/.test(tip.textContent), 'the chart says what it shows');
  for (const choice of document.querySelectorAll('select')) {
    choice.value = choice.options.length - 1;
    choice.dispatchEvent(new Event('change'));
  }
  const last = plan.memory.stages[plan.memory.stages.length - 1];
  check(text().includes(grouped(last.peak_bytes)), 'another stage’s memory');
  for (const type of ['beforeprint', 'afterprint']) dispatchEvent(new Event(type));
  check(root.dataset.errors === '0', `${root.dataset.errors} scripts failed`);
  root.dataset.failed = failed.join('; ');
})();
