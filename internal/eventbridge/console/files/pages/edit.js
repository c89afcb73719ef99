// A bus or a subscriber as JSON.

import { get, path, request } from '../api.js';
import { el, field, put } from '../dom.js';
import { editor, faultList } from '../editor.js';
import { parse, stringify } from '../exact.js';
import { at, notice, showProblem, submit, subscriberHead, way } from '../parts.js';
import { subscriberExamples } from '../examples.js';

export async function editBus({ parameters, title, signal }) {
  const { bus } = parameters;
  title(`Edit ${bus}`);
  const address = path.bus(bus);
  return [
    way(['Buses', '#/buses'], [bus, at.bus(bus)]),
    el('h1', null, `Edit ${bus}`),
    await change(address, signal, at.bus(bus)),
  ];
}

export async function editSubscriber({ parameters, title, signal }) {
  const { bus, subscriber } = parameters;
  title(`Edit ${subscriber}`);
  return [subscriberHead(parameters, '/edit'), await change(path.subscriber(bus, subscriber), signal, at.subscriber(bus, subscriber))];
}

/** change is a form for an object that there is. */
async function change(address, signal, back) {
  let etag = '';
  const load = async () => {
    const answer = await get(address, { signal });
    etag = answer.etag;
    const object = answer.data;
    for (const set of ['revision', 'created', 'changed', 'uid', 'reason']) delete object[set]; // by the server alone
    return stringify(object);
  };
  const sheet = editor('JSON', await load(), { rows: 26, hint: 'A secret that is shown as <redacted> stays as it is.' });
  const problems = el('div');
  const form = el('form', null, sheet.root, problems, el('div', { class: 'actions' },
    el('button', { type: 'submit', class: 'primary' }, 'Save'), el('a', { class: 'button', href: back }, 'Cancel')));
  submit(form, problems, () => save(sheet, problems, async () => {
    const { data } = await request('PUT', address, { text: sheet.input.value, ifMatch: etag, signal });
    notice(`${data.name} is saved.`);
    location.hash = back;
  }, async () => {
    sheet.input.value = await load();
    sheet.mark([]);
    problems.replaceChildren();
    sheet.input.focus();
  }));
  return form;
}

export async function newSubscriber({ parameters, title, signal }) {
  const { bus } = parameters;
  title('New subscriber');
  await get(path.bus(bus), { signal });
  const name = el('input', { required: true, autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', maxlength: 63 });
  const example = el('select', null, Object.keys(subscriberExamples).map((kind) => el('option', { value: kind }, kind)));
  const sheet = editor('JSON', stringify(subscriberExamples.webhook), { rows: 26, hint: 'Missing keys have their defaults.' });
  let untouched = sheet.input.value;
  example.addEventListener('change', () => {
    const chosen = subscriberExamples[example.value];
    if (sheet.input.value === untouched) {
      sheet.input.value = stringify(chosen);
    } else {
      try { // keep what was written, but for the target
        sheet.input.value = stringify({ ...parse(sheet.input.value), target: chosen.target });
      } catch {
        return; // not JSON: what was written stays
      }
    }
    untouched = sheet.input.value;
    sheet.mark([]);
  });
  const problems = el('div');
  const form = el('form', null,
    el('div', { class: 'fields' }, field('Name', name, { hint: 'a-z, 0-9 and -' }), field('Target', example)),
    sheet.root, problems,
    el('div', { class: 'actions' }, el('button', { type: 'submit', class: 'primary' }, 'Create'), el('a', { class: 'button', href: at.bus(bus) }, 'Cancel')));
  submit(form, problems, () => save(sheet, problems, async () => {
    const { data } = await request('PUT', path.subscriber(bus, name.value.trim()), { text: sheet.input.value, create: true, signal });
    notice(`Subscriber ${data.name} is created.`);
    location.hash = at.subscriber(bus, data.name);
  }));
  return [way(['Buses', '#/buses'], [bus, at.bus(bus)]), el('h1', null, 'New subscriber'), form];
}

/** save does f, and shows the faults that the API finds at their places. reload, if given, is offered when somebody else has changed the object. */
async function save(sheet, problems, f, reload) {
  sheet.mark([]);
  try {
    await f();
  } catch (error) {
    if (error.faults?.length) {
      sheet.mark(error.faults.map((fault) => fault.pointer).filter(Boolean));
      put(problems, el('div', { class: 'problem', role: 'alert' }, el('p', null, `Not saved: ${error.message}.`), faultList(sheet, error.faults)));
      return;
    }
    if (error.status !== 412 || !reload) throw error;
    put(problems, showProblem(error), el('p', null, el('button', {
      type: 'button',
      onclick: () => reload().catch((problem) => put(problems, showProblem(problem))),
    }, 'Load the stored version'), el('span', { class: 'hint' }, ' This discards your changes above.')));
  }
}
