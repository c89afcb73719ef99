// Exercises a Redis endpoint with ioredis. See doc.go for the arguments and the output.
import assert from 'node:assert/strict';
import Redis from 'ioredis';

const PATIENCE = 60000; // milliseconds
const [url, protocol, prefix] = process.argv.slice(2);

const connect = (options = {}) => {
  const client = new Redis(url, { protocol: Number(protocol), maxRetriesPerRequest: 0, retryStrategy: null, commandTimeout: PATIENCE, ...options });
  client.on('error', () => {}); // a command's promise tells of it
  return client;
};
const key = (name) => `${prefix}:${name}`;
const equal = assert.deepStrictEqual;
const refused = (promise, text) => assert.rejects(promise, (error) => {
  assert.ok(error.message.includes(text), `error ${error.message}, want ${text}`);
  return true;
});
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const checks = {
  async connect(r) {
    equal(await r.ping(), 'PONG');
    equal(await r.echo('hello'), 'hello');
    const named = connect({ connectionName: 'stock-client' });
    equal(await named.client('GETNAME'), 'stock-client');
    assert.ok(await named.client('ID') > 0);
    assert.match(await r.info('server'), /redis_version:\d/);
    equal(await named.quit(), 'OK');
  },

  async select(r) {
    const other = connect({ db: 1 });
    await r.set(key('db'), '0');
    equal(await other.get(key('db')), null);
    await other.set(key('db'), '1');
    equal(await r.get(key('db')), '0');
    await r.select(1);
    equal(await r.get(key('db')), '1');
    other.disconnect();
  },

  async strings(r) {
    const k = key('string');
    equal(await r.get(k), null);
    equal(await r.set(k, 'v', 'NX'), 'OK');
    equal(await r.set(k, 'w', 'NX'), null);
    equal(await r.set(k, 'w', 'GET'), 'v');
    equal(await r.append(k, 'xyz'), 4);
    equal(await r.getrange(k, 1, 2), 'xy');
    equal(await r.incrby(key('number'), 41), 41);
    equal(await r.incrbyfloat(key('number'), 0.5), '41.5');
    equal(await r.mset({ [key('m1')]: 1, [key('m2')]: 2 }), 'OK');
    equal(await r.mget(key('m1'), key('missing'), key('m2')), ['1', null, '2']);
    equal(await r.exists(key('m1'), key('m2'), key('missing')), 2);
    equal(await r.del(key('m1'), key('m2'), key('missing')), 2);
    equal(await r.type(k), 'string');
  },

  async binary(r) {
    const every = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, i) => i)), Buffer.from('\r\n$-1\r\n*3\r\n')]);
    const k = Buffer.concat([Buffer.from(key('b')), every]);
    await r.set(k, every);
    equal(await r.getBuffer(k), every);
    const large = Buffer.concat(Array(5000).fill(every));
    await r.set(key('large'), large);
    equal(await r.getBuffer(key('large')), large);
    await r.set(key('empty'), '');
    equal(await r.get(key('empty')), '');
  },

  async expiry(r) {
    const k = key('expiry');
    await r.set(k, 'v', 'PX', 60000);
    const left = await r.pttl(k);
    assert.ok(left > 50000 && left <= 60000, `pttl ${left}`);
    equal(await r.persist(k), 1);
    equal(await r.ttl(k), -1);
    equal(await r.pexpire(k, 50), 1);
    const giveUp = Date.now() + PATIENCE;
    while (await r.exists(k)) {
      assert.ok(Date.now() < giveUp, 'never expired');
      await sleep(10);
    }
    equal(await r.ttl(k), -2);
  },

  async hashes(r) {
    const k = key('hash');
    equal(await r.hset(k, { a: 1, b: 'two' }), 2);
    equal(await r.hgetall(k), { a: '1', b: 'two' });
    equal(await r.hmget(k, 'a', 'x'), ['1', null]);
    equal(await r.hincrby(k, 'a', 5), 6);
    equal(await r.hdel(k, 'a', 'x'), 1);
    equal(await r.hgetall(key('missing')), {});
  },

  async lists(r) {
    const k = key('list');
    equal(await r.rpush(k, 'a', 'b', 'c'), 3);
    equal(await r.lrange(k, 0, -1), ['a', 'b', 'c']);
    equal(await r.lpop(k), 'a');
    equal(await r.rpop(k, 5), ['c', 'b']);
    equal(await r.lpop(k), null);
    equal(await r.lpop(k, 2), null);
  },

  async sets(r) {
    const k = key('set');
    equal(await r.sadd(k, 'a', 'b', 'c'), 3);
    equal((await r.smembers(k)).sort(), ['a', 'b', 'c']);
    equal(await r.sismember(k, 'x'), 0);
    equal(await r.smismember(k, 'a', 'x'), [1, 0]);
    const popped = await r.spop(k);
    equal(await r.scard(k), 2);
    assert.ok(!(await r.smembers(k)).includes(popped));
  },

  async sorted_sets(r) {
    const k = key('zset');
    equal(await r.zadd(k, 1, 'a', 2.5, 'b', 'inf', 'c'), 3);
    equal(await r.zrange(k, 0, -1, 'WITHSCORES'), ['a', '1', 'b', '2.5', 'c', 'inf']);
    equal(await r.zscore(k, 'b'), '2.5');
    equal(await r.zscore(k, 'x'), null);
    equal(await r.zincrby(k, 1, 'a'), '2');
    equal(await r.zrangebyscore(k, 2, 3), ['a', 'b']);
    equal(await r.zrank(k, 'c'), 2);
  },

  async streams(r) {
    const k = key('stream');
    const first = await r.xadd(k, '*', 'n', 1);
    const second = await r.xadd(k, '*', 'n', 2);
    equal(await r.xrange(k, '-', '+'), [[first, ['n', '1']], [second, ['n', '2']]]);
    equal(await r.xlen(k), 2);
    equal(await r.xgroup('CREATE', k, 'g', '0'), 'OK');
    equal(await r.xreadgroup('GROUP', 'g', 'c', 'COUNT', 1, 'STREAMS', k, '>'), [[k, [[first, ['n', '1']]]]]);
    equal(await r.xack(k, 'g', first), 1);
  },

  async pipeline(r) {
    const k = key('pipeline');
    const pipe = r.pipeline();
    for (let i = 0; i < 1000; i++) {
      pipe.set(`${k}:${i}`, i).get(`${k}:${i}`);
      if (i === 500) pipe.lpush(`${k}:${i}`, 'wrong type');
    }
    const replies = await pipe.exec();
    const [[error]] = replies.splice(1002, 1);
    assert.match(error.message, /^WRONGTYPE/);
    equal(replies.filter((_, i) => i % 2 === 1), Array.from({ length: 1000 }, (_, i) => [null, String(i)]));
  },

  async transaction(r) {
    const k = key('transaction');
    equal(await r.multi().set(k, 1).incr(k).get(k).exec(), [[null, 'OK'], [null, 2], [null, '2']]);
    const replies = await r.multi().incr(k).lpush(k, 'x').incr(k).exec();
    equal([replies[0], replies[2]], [[null, 3], [null, 4]]);
    assert.match(replies[1][0].message, /^WRONGTYPE/);
    await refused(r.multi().set(k, 'lost').call('NO-SUCH-COMMAND').exec(), 'EXECABORT');
    equal(await r.get(k), '4');
    await r.multi({ pipeline: false });
    equal(await r.set(k, 'discarded'), 'QUEUED');
    equal(await r.discard(), 'OK');
    equal(await r.get(k), '4');
  },

  async watch(r) {
    const k = key('watch');
    const other = connect();
    await r.set(k, 1);
    equal(await r.watch(k), 'OK');
    await other.set(k, 10);
    equal(await r.multi().incr(k).exec(), null);
    await r.watch(k);
    const value = Number(await r.get(k));
    equal(await r.multi().set(k, value + 1).exec(), [[null, 'OK']]);
    equal(await r.get(k), '11');
    other.disconnect();
  },

  async blocking(r) {
    const k = key('{blocking}');
    const waiter = connect();
    const popped = waiter.blpop(k, key('{blocking}:other'), PATIENCE / 1000);
    await sleep(100); // most likely the push finds the client waiting
    await r.rpush(k, 'pushed');
    equal(await popped, [k, 'pushed']);
    equal(await r.blpop(k, 0.05), null);
    await r.rpush(k, 'there');
    equal(await r.brpop(k, 1), [k, 'there']);
    await r.rpush(k, 'moved');
    equal(await r.blmove(k, key('{blocking}:moved'), 'LEFT', 'RIGHT', 1), 'moved');
    await r.zadd(key('{blocking}:bz'), 1.5, 'a');
    equal(await r.bzpopmin(key('{blocking}:bz'), 1), [key('{blocking}:bz'), 'a', '1.5']);
    waiter.disconnect();
  },

  async pubsub(r) {
    const channel = key('channel');
    const subscriber = connect();
    const heard = [];
    let wake = () => {};
    subscriber.on('message', (c, m) => { heard.push(['message', c, m]); wake(); });
    subscriber.on('pmessage', (p, c, m) => { heard.push(['pmessage', c, m]); wake(); });
    const messages = async (n) => {
      const timeout = sleep(PATIENCE).then(() => { throw new Error('no message'); });
      timeout.catch(() => {});
      while (heard.length < n) await Promise.race([timeout, new Promise((resolve) => { wake = resolve; })]);
      return heard.splice(0).sort();
    };
    equal(await subscriber.subscribe(channel), 1);
    equal(await subscriber.psubscribe(`${channel}*`), 2);
    equal(await r.publish(channel, 'news'), 2);
    equal(await messages(2), [['message', channel, 'news'], ['pmessage', channel, 'news']]);
    equal(await subscriber.unsubscribe(channel), 1);
    equal(await r.publish(channel, 'more'), 1);
    equal(await messages(1), [['pmessage', channel, 'more']]);
    equal(await subscriber.punsubscribe(), 0);
    equal(await subscriber.ping(), 'PONG');
    subscriber.disconnect();
  },

  async scan(r) {
    const want = Array.from({ length: 300 }, (_, i) => `${key('scan')}:${i}`);
    await Promise.all(want.map((k) => r.set(k, 1)));
    const collect = async (stream) => {
      const all = [];
      for await (const part of stream) all.push(...part);
      return all;
    };
    equal(new Set(await collect(r.scanStream({ match: `${key('scan')}:*`, count: 50 }))), new Set(want));
    equal((await r.keys(`${key('scan')}:1?`)).length, 10);
    await r.hset(key('scan-hash'), Object.fromEntries(Array.from({ length: 200 }, (_, i) => [`f${i}`, i])));
    equal((await collect(r.hscanStream(key('scan-hash')))).length, 400);
    await r.sadd(key('scan-set'), Array.from({ length: 200 }, (_, i) => `m${i}`));
    equal(new Set(await collect(r.sscanStream(key('scan-set')))).size, 200);
    await r.zadd(key('scan-zset'), ...Array.from({ length: 200 }, (_, i) => [i, `m${i}`]).flat());
    const scores = await collect(r.zscanStream(key('scan-zset')));
    equal(scores[scores.indexOf('m7') + 1], '7');
  },

  async script(r) {
    const k = key('script');
    const body = "redis.call('SET', KEYS[1], ARGV[1]); return {redis.call('GET', KEYS[1]), 7, false}";
    equal(await r.eval(body, 1, k, 'by a script'), ['by a script', 7, null]);
    equal(await r.get(k), 'by a script');
    r.defineCommand('add', { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
    equal(await r.add(key('script-n'), 5), 5);
    equal(await r.add(key('script-n'), 5), 10);
    await refused(r.evalsha('0'.repeat(40), 0), 'NOSCRIPT');
    await refused(r.eval("return redis.error_reply('OWN own error')", 0), 'OWN own error');
  },

  async errors(r) {
    const k = key('errors');
    await r.set(k, 'text');
    await refused(r.lpush(k, 1), 'WRONGTYPE Operation against a key holding the wrong kind of value');
    await refused(r.incr(k), 'ERR value is not an integer or out of range');
    await refused(r.call('GET'), "ERR wrong number of arguments for 'get' command");
    await refused(r.call('NO-SUCH-COMMAND', 'x'), "ERR unknown command 'NO-SUCH-COMMAND', with args beginning with: 'x'");
    await refused(r.set(k, 'v', 'BAD'), 'ERR syntax error');
    await refused(r.call('EXEC'), 'ERR EXEC without MULTI');
    equal(await r.get(k), 'text');
  },
};

let failed = false;
for (const [name, check] of Object.entries(checks)) {
  const client = connect();
  try {
    await check(client);
    console.log(`ok ${name}`);
  } catch (error) {
    failed = true;
    console.error(error);
    console.log(`FAILED ${name}: ${String(error.message).replaceAll('\n', ' ')}`);
  } finally {
    client.disconnect();
  }
}
process.exit(failed ? 1 : 0);
