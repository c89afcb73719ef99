// JSON whose numbers stay as they were written: 12345678901234567890 and 1.0 are not the same after a plain JSON.parse. Browsers that do not know
// JSON.rawJSON (before 2025) show such numbers as JavaScript rounds them.

/** parse reads JSON. Numbers that JavaScript would write differently become objects that stringify writes as they were. */
export function parse(text) {
  if (typeof JSON.rawJSON !== 'function') return JSON.parse(text);
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== 'number' || !context?.source || String(value) === context.source) return value;
    return Number.isSafeInteger(value) && /^-?\d+$/.test(context.source) ? value : JSON.rawJSON(context.source);
  });
}

/** stringify writes it for people. */
export function stringify(value) {
  return JSON.stringify(value, null, 2);
}
