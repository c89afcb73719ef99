// The processes.

import { get } from '../api.js';
import { age, chip, el, renew, say, table, time } from '../dom.js';
import { every, showProblem } from '../parts.js';

export async function instances({ title, signal }) {
  title('Instances');
  const list = table('Instances', [
    { name: 'Instance' }, { name: 'Roles' }, { name: 'Version' }, { name: 'Matches by revision', number: true }, { name: 'Partitions it owns' }, { name: 'Started' }, { name: 'Last message', number: true },
  ]);
  const none = el('p', { class: 'note', hidden: true }, 'No instance has reported its state yet.');
  const why = el('div');
  const shown = el('div');
  const look = async (quiet) => {
    try {
      const { data } = await get('/v1/instances', { signal, quiet });
      const newest = Math.max(0, ...data.items.map(revisionOf));
      const fixed = data.items.map(({ seen, ...rest }) => rest);
      renew(shown, JSON.stringify(fixed), () => {
        list.body.replaceChildren(...data.items.map((i) => row(list, i, newest)));
        return [list.root];
      });
      data.items.forEach((i, at) => say(list.body.children[at].querySelector('.seen'), i.seen ? `${age(i.seen)} ago` : '–'));
      none.hidden = data.items.length > 0;
      list.root.hidden = data.items.length === 0;
      renew(why, '', () => []);
    } catch (error) {
      if (error.name !== 'AbortError') renew(why, error.message, () => showProblem(error));
    }
  };
  await look(false);
  every(3000, signal, () => look(true));
  return [
    el('h1', null, 'Instances'),
    el('p', { class: 'hint' }, 'A change is active once every engine matches by its revision.'),
    why, shown, none,
  ];
}

const roles = ['preprocessor', 'engine', 'processor'];

function revisionOf(instance) {
  return instance.revision ?? 0;
}

function row(list, i, newest) {
  const revision = revisionOf(i);
  const owned = Object.entries(i.partitions ?? {}).map(([bus, parts]) => `${bus}: ${parts.join(', ')}`);
  return list.row(
    i.name,
    (i.roles ?? []).map((role) => el('div', { class: roles.includes(role) && 'short' }, role)),
    i.version ?? '–',
    i.roles?.includes('engine') ? [String(revision), revision < newest && [' ', chip('behind', 'warn')]] : '–',
    owned.length > 0 ? owned.map((text) => el('div', null, text)) : '–',
    time(i.started),
    el('span', { class: 'seen' }));
}
