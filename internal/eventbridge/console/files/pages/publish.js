// Publish a test event.

import { get, path, request } from '../api.js';
import { el, field, put } from '../dom.js';
import { editor } from '../editor.js';
import { sampleEvent } from '../examples.js';
import { stringify } from '../exact.js';
import { at, submit } from '../parts.js';

export async function publish({ title, query, signal }) {
  title('Publish');
  const { data } = await get('/v1/buses?limit=1000', { signal });
  if (data.items.length === 0) {
    return [el('h1', null, 'Publish a test event'), el('p', { class: 'note' }, 'There is no bus yet. ', el('a', { href: '#/buses' }, 'Create one'), ' first.')];
  }
  const bus = el('select', { required: true }, data.items.map((b) => el('option', { value: b.name, selected: b.name === query.get('bus') }, b.name)));
  const sender = el('input', { type: 'password', autocomplete: 'off', spellcheck: 'false' });
  const sheet = editor('CloudEvent as JSON', stringify(sampleEvent()), { rows: 22 });
  const fresh = el('button', { type: 'button' }, 'New event');
  fresh.addEventListener('click', () => { sheet.input.value = stringify(sampleEvent()); });
  const problems = el('div');
  const done = el('div', { role: 'status', 'aria-live': 'polite' });
  const form = el('form', null,
    el('div', { class: 'fields' },
      field('Bus', bus),
      field('Token of a sender', sender, { hint: 'Only where senders need one. It is not the token of the API, and is not kept.' })),
    sheet.root, problems, done,
    el('div', { class: 'actions' }, el('button', { type: 'submit', class: 'primary' }, 'Publish'), fresh));
  submit(form, problems, async () => {
    put(done);
    const { data: answer } = await request('POST', path.events(bus.value), {
      text: sheet.input.value, type: 'application/cloudevents+json', bearer: sender.value.trim(), signal,
    });
    put(done, el('p', { class: 'success' }, 'Stored', answer?.id && [' as ', el('code', null, answer.id)], ' on ', el('a', { href: at.bus(bus.value) }, bus.value), '.'));
  });
  return [
    el('h1', null, 'Publish a test event'),
    el('p', { class: 'hint' }, 'Eventbridge delivers this event to every subscriber with a matching rule. It drops an event with the same source and id as another within the bus’ window.'),
    form,
  ];
}
