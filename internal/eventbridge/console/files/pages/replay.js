// Deliver past events again.

import { path, post } from '../api.js';
import { el, field, showFaults } from '../dom.js';
import { instant, jobPanel, number } from '../job.js';
import { submit, subscriberHead } from '../parts.js';

export async function replay({ parameters, title, signal }) {
  const { bus, subscriber: name } = parameters;
  title(`${name}: replay`);
  const from = el('input', { type: 'datetime-local', step: 1, required: true });
  const to = el('input', { type: 'datetime-local', step: 1 });
  const rate = el('input', { type: 'number', min: 0, step: 'any', inputmode: 'decimal' });
  const problems = el('div');
  const job = jobPanel(bus, name, signal);
  const form = el('form', { class: 'fields' },
    field('From', from, { pointer: '/from', hint: 'When the bus stored the event, by the clock of this browser’s zone.' }),
    field('Before', to, { pointer: '/to', hint: 'Empty: now.' }),
    field('Events per second', rate, { pointer: '/rate', hint: 'Empty: no bound.' }),
    el('div', { class: 'actions' },
      el('button', { type: 'submit', value: 'dry' }, 'Count only'),
      el('button', { type: 'submit', value: 'replay', class: 'primary' }, 'Replay')),
    problems);
  submit(form, problems, async (button) => {
    showFaults(form, []);
    const options = { from: instant(from), to: instant(to), rate: number(rate), dry_run: button?.value === 'replay' ? undefined : true };
    const { data } = await post(`${path.subscriber(bus, name)}:replay`, options, { signal });
    job.show(data);
  });
  return [
    subscriberHead(parameters, '/replay'),
    el('section', { class: 'panel' }, el('h2', null, 'Replay'),
      el('p', { class: 'hint' }, 'Past events of the bus are matched against the present rules. Those that match are delivered, also when they were delivered before.'),
      form),
    job.root,
  ];
}
