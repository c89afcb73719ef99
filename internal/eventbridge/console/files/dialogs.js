// Questions to the user.

import { token } from './api.js';
import { el, field, id } from './dom.js';

/** open shows a dialog and resolves to its answer once it is closed; Escape closes it with ''. */
function open(heading, content, buttons) {
  const title = el('h2', { id: id('title') }, heading);
  const box = el('dialog', { 'aria-labelledby': title.id }, el('form', { method: 'dialog' }, title, content, el('div', { class: 'actions' }, buttons)));
  document.body.append(box);
  return new Promise((resolve) => {
    box.addEventListener('close', () => {
      box.remove();
      resolve(box.returnValue);
    });
    box.showModal();
  });
}

/** confirm asks before what cannot be taken back. It resolves to whether to do it. */
export async function confirm(heading, text, action) {
  const cancel = el('button', { type: 'submit', value: '', autofocus: true }, 'Cancel');
  return (await open(heading, el('p', null, text), [cancel, el('button', { type: 'submit', value: 'yes', class: 'danger' }, action)])) === 'yes';
}

/** askForToken resolves to whether there is a token to try. */
export async function askForToken(why) {
  const input = el('input', { type: 'password', autocomplete: 'off', spellcheck: 'false', autofocus: true, name: 'token' });
  input.value = token.get();
  const answer = await open('Token', [
    why && el('p', { class: 'problem', role: 'alert' }, why),
    field('Token of the API', input, { hint: 'It is kept in this browser tab only, until the tab is closed.' }),
  ], [
    el('button', { type: 'submit', value: 'use', class: 'primary' }, 'Use'),
    el('button', { type: 'submit', value: 'forget', formnovalidate: true }, 'Forget'),
    el('button', { type: 'submit', value: '' }, 'Cancel'),
  ]);
  if (answer === 'use') token.set(input.value.trim());
  if (answer === 'forget') token.set('');
  return answer === 'use' && token.get() !== '';
}
