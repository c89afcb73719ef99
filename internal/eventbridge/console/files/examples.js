// Texts to begin with.

const rules = [{ name: 'orders', pattern: { type: [{ prefix: 'order.' }] } }];

// Subscribers by the kind of their target.
export const subscriberExamples = {
  webhook: {
    description: '',
    rules,
    order: 'none',
    target: { webhook: { url: 'https://example.com/events', mode: 'structured' } },
    delivery: { timeout: '10s', retry: { max_attempts: 16, max_age: '24h' }, breaker: { failures: 10, probe: '30s' } },
  },
  pulsar: { description: '', rules, order: 'group', target: { pulsar: { topic: 'persistent://public/default/orders' } } },
  kafka: { description: '', rules, order: 'group', target: { kafka: { connection: 'main', topic: 'orders' } } },
  rabbitmq: { description: '', rules, order: 'none', target: { rabbitmq: { connection: 'main', exchange: 'orders', routing_key: '' } } },
  log: { description: '', rules, order: 'none', target: { log: {} } },
};

/** sampleEvent is an event with an id of its own. */
export function sampleEvent() {
  return {
    specversion: '1.0',
    id: crypto.randomUUID?.() ?? [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, '0')).join(''),
    source: '/shop/web',
    type: 'order.placed',
    subject: 'order/1042',
    time: new Date().toISOString(),
    partitionkey: 'customer-17',
    data: { total: 129.9, currency: 'EUR', customer: { country: 'DE', tier: 'gold' }, items: [{ sku: 'A-1', count: 2 }, { sku: 'B-7', count: 1 }] },
  };
}

const event = { ...sampleEvent(), id: '1042', time: '2026-01-15T09:30:00Z' };

// Patterns to try, each with an event.
export const patternExamples = [
  { name: 'Type begins with a text', pattern: { type: [{ prefix: 'order.' }] }, event },
  { name: 'One of several values', pattern: { type: ['order.placed', 'order.paid'], data: { currency: ['EUR', 'USD'] } }, event },
  { name: 'Numbers in a range', pattern: { data: { total: [{ numeric: ['>', 100, '<=', 500] }] } }, event },
  { name: 'Anything but', pattern: { data: { customer: { country: [{ 'anything-but': ['US', 'CA'] }] } } }, event },
  { name: 'Wildcard', pattern: { source: [{ wildcard: '/shop/*' }] }, event },
  { name: 'A field is there, another is not', pattern: { data: { customer: [{ exists: false }], coupon: [{ exists: false }] } }, event },
  { name: 'Either of two fields', pattern: { $or: [{ data: { total: [{ numeric: ['>=', 1000] }] } }, { data: { customer: { tier: ['gold'] } } }] }, event },
  { name: 'Fields of one element of an array', pattern: { data: { items: { sku: ['A-1'], count: [1] } } }, event },
  { name: 'Addresses of a network', pattern: { data: { address: [{ cidr: '10.0.0.0/8' }] } }, event: { ...event, type: 'login', data: { address: '10.20.30.40' } } },
];
