// All buses, and a form to create one.

import { pageOf, path, request } from '../api.js';
import { bytes, el, field, showFaults, span, table, time } from '../dom.js';
import { at, notice, showProblem, submit } from '../parts.js';

export async function buses({ title, signal }) {
  title('Buses');
  const list = table('Buses', [
    { name: 'Bus' }, { name: 'Partitions', number: true }, { name: 'Duplicates are dropped for' }, { name: 'Largest event', number: true }, { name: 'Changed' },
  ]);
  const more = el('button', { type: 'button', class: 'more' }, 'Show more');
  const none = el('p', { class: 'note' }, 'There is no bus yet. Create one below.');
  let after = '';
  const load = async () => {
    const page = await pageOf('/v1/buses', after, { signal });
    for (const b of page.items) {
      list.body.append(list.row(
        [el('a', { href: at.bus(b.name) }, b.name), b.description && el('div', { class: 'hint' }, b.description)],
        String(b.partitions), windowText(b.dedup_window), bytes(b.max_event_bytes), time(b.changed)));
    }
    after = page.next ?? '';
    more.hidden = !after;
    none.hidden = list.body.children.length > 0;
    list.root.hidden = !none.hidden;
  };
  const problems = el('div');
  more.addEventListener('click', () => load().catch((error) => problems.replaceChildren(showProblem(error))));
  await load();
  return [
    el('h1', null, 'Buses'),
    list.root, none, more, problems,
    create(list.body.children.length === 0),
  ];
}

/** windowText says for how long a bus leaves duplicates out. */
export function windowText(window) {
  return /^0+s?$/.test(window ?? '') ? 'never' : span(window);
}

function create(opened) {
  const name = el('input', { required: true, autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', maxlength: 63 });
  const partitions = el('input', { type: 'number', min: 1, inputmode: 'numeric' });
  const window = el('input', { autocomplete: 'off', placeholder: '10m' });
  const description = el('input', { autocomplete: 'off' });
  const problems = el('div');
  const form = el('form', { class: 'fields' },
    field('Name', name, { pointer: '/name', hint: 'a-z, 0-9 and -' }),
    field('Partitions', partitions, { pointer: '/partitions', hint: 'They cannot be changed later. Empty for the default.' }),
    field('Window for duplicates', window, { pointer: '/dedup_window', hint: 'How long an event with the same source and id is dropped. 0s: never.' }),
    field('Description', description, { pointer: '/description' }),
    el('div', { class: 'actions' }, el('button', { type: 'submit', class: 'primary' }, 'Create')),
    problems);
  submit(form, problems, async () => {
    showFaults(form, []);
    const body = {};
    if (partitions.value) body.partitions = Number(partitions.value);
    if (window.value.trim()) body.dedup_window = window.value.trim();
    if (description.value.trim()) body.description = description.value.trim();
    try {
      const { data } = await request('PUT', path.bus(name.value.trim()), { body, create: true });
      notice(`Bus ${data.name} is created.`);
      location.hash = at.bus(data.name);
    } catch (error) {
      const rest = showFaults(form, error.faults);
      if (rest.length > 0 || !error.faults?.length) throw Object.assign(error, { faults: rest });
    }
  });
  return el('details', { class: 'panel', open: opened }, el('summary', null, 'Create a bus'), form);
}
