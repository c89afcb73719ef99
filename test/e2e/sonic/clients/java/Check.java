import io.lettuce.core.*;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.CommandType;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

/** Exercises a Redis endpoint with Lettuce. See doc.go for the arguments and the output. */
public class Check {
  static String prefix;
  static RedisClient client;
  static RedisURI uri;

  interface Body {
    void run(RedisCommands<String, String> r) throws Exception;
  }

  static String key(String name) {
    return prefix + ":" + name;
  }

  static void equal(Object got, Object want) {
    if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
  }

  static void isTrue(boolean condition, String otherwise) {
    if (!condition) throw new AssertionError(otherwise);
  }

  static void refused(Callable<?> call, String text) throws Exception {
    Object got;
    try {
      got = call.call();
    } catch (RedisException error) {
      isTrue(String.valueOf(error.getMessage()).contains(text), "error " + error.getMessage() + ", want " + text);
      return;
    }
    throw new AssertionError("got " + got + ", want the error " + text);
  }

  static Object raw(RedisCommands<String, String> r, String command, String... args) {
    ProtocolKeyword keyword = new ProtocolKeyword() {
      @Override
      public byte[] getBytes() {
        return command.getBytes(StandardCharsets.US_ASCII);
      }

      @Override
      public String toString() {
        return command;
      }
    };
    CommandArgs<String, String> list = new CommandArgs<>(StringCodec.UTF8);
    for (String arg : args) list.add(arg);
    return r.dispatch(keyword, new StatusOutput<>(StringCodec.UTF8), list);
  }

  static void connect(RedisCommands<String, String> r) {
    equal(r.ping(), "PONG");
    equal(r.echo("hello"), "hello");
    RedisURI named = RedisURI.builder(uri).build();
    named.setClientName("stock-client");
    try (StatefulRedisConnection<String, String> other = client.connect(named)) {
      equal(other.sync().clientGetname(), "stock-client");
      isTrue(other.sync().clientId() > 0, "no client id");
    }
    isTrue(r.info("server").contains("redis_version:"), "no version");
  }

  static void select(RedisCommands<String, String> r) {
    RedisURI one = RedisURI.builder(uri).build();
    one.setDatabase(1);
    try (StatefulRedisConnection<String, String> other = client.connect(one)) {
      r.set(key("db"), "0");
      equal(other.sync().get(key("db")), null);
      other.sync().set(key("db"), "1");
      equal(r.get(key("db")), "0");
    }
    equal(r.select(1), "OK");
    equal(r.get(key("db")), "1");
  }

  static void strings(RedisCommands<String, String> r) {
    String k = key("string");
    equal(r.get(k), null);
    equal(r.set(k, "v", SetArgs.Builder.nx()), "OK");
    equal(r.set(k, "w", SetArgs.Builder.nx()), null);
    equal(r.setGet(k, "w"), "v");
    equal(r.append(k, "xyz"), 4L);
    equal(r.getrange(k, 1, 2), "xy");
    equal(r.incrby(key("number"), 41), 41L);
    equal(r.incrbyfloat(key("number"), 0.5), 41.5);
    equal(r.mset(Map.of(key("m1"), "1", key("m2"), "2")), "OK");
    equal(r.mget(key("m1"), key("missing"), key("m2")),
        List.of(KeyValue.just(key("m1"), "1"), KeyValue.empty(key("missing")), KeyValue.just(key("m2"), "2")));
    equal(r.exists(key("m1"), key("m2"), key("missing")), 2L);
    equal(r.del(key("m1"), key("m2"), key("missing")), 2L);
    equal(r.type(k), "string");
  }

  static void binary(RedisCommands<String, String> r) throws Exception {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (int i = 0; i < 256; i++) out.write(i);
    out.write("\r\n$-1\r\n*3\r\n".getBytes(StandardCharsets.US_ASCII));
    byte[] every = out.toByteArray();
    try (StatefulRedisConnection<byte[], byte[]> c = client.connect(ByteArrayCodec.INSTANCE, uri)) {
      RedisCommands<byte[], byte[]> b = c.sync();
      ByteArrayOutputStream name = new ByteArrayOutputStream();
      name.write(key("b").getBytes(StandardCharsets.US_ASCII));
      name.write(every);
      b.set(name.toByteArray(), every);
      isTrue(Arrays.equals(b.get(name.toByteArray()), every), "other bytes");
      ByteArrayOutputStream large = new ByteArrayOutputStream();
      for (int i = 0; i < 5000; i++) large.write(every);
      byte[] k = key("large").getBytes(StandardCharsets.US_ASCII);
      b.set(k, large.toByteArray());
      isTrue(Arrays.equals(b.get(k), large.toByteArray()), "other bytes in a large value");
    }
    r.set(key("empty"), "");
    equal(r.get(key("empty")), "");
  }

  static void expiry(RedisCommands<String, String> r) throws Exception {
    String k = key("expiry");
    r.set(k, "v", SetArgs.Builder.px(60_000));
    long left = r.pttl(k);
    isTrue(left > 50_000 && left <= 60_000, "pttl " + left);
    equal(r.persist(k), true);
    equal(r.ttl(k), -1L);
    equal(r.pexpire(k, 50), true);
    long giveUp = System.nanoTime() + 60_000_000_000L;
    while (r.exists(k) > 0) {
      isTrue(System.nanoTime() < giveUp, "never expired");
      Thread.sleep(10);
    }
    equal(r.ttl(k), -2L);
  }

  static void hashes(RedisCommands<String, String> r) {
    String k = key("hash");
    equal(r.hset(k, Map.of("a", "1", "b", "two")), 2L);
    equal(r.hgetall(k), Map.of("a", "1", "b", "two"));
    equal(r.hmget(k, "a", "x"), List.of(KeyValue.just("a", "1"), KeyValue.empty("x")));
    equal(r.hincrby(k, "a", 5), 6L);
    equal(r.hdel(k, "a", "x"), 1L);
    equal(r.hgetall(key("missing")), Map.of());
  }

  static void lists(RedisCommands<String, String> r) {
    String k = key("list");
    equal(r.rpush(k, "a", "b", "c"), 3L);
    equal(r.lrange(k, 0, -1), List.of("a", "b", "c"));
    equal(r.lpop(k), "a");
    equal(r.rpop(k, 5), List.of("c", "b"));
    equal(r.lpop(k), null);
    isTrue(r.lpop(k, 2).isEmpty(), "popped from nothing");
  }

  static void sets(RedisCommands<String, String> r) {
    String k = key("set");
    equal(r.sadd(k, "a", "b", "c"), 3L);
    equal(r.smembers(k), Set.of("a", "b", "c"));
    equal(r.sismember(k, "x"), false);
    equal(r.smismember(k, "a", "x"), List.of(true, false));
    String popped = r.spop(k);
    equal(r.scard(k), 2L);
    isTrue(!r.smembers(k).contains(popped), "popped and still there");
  }

  static void sortedSets(RedisCommands<String, String> r) {
    String k = key("zset");
    equal(r.zadd(k, ScoredValue.just(1, "a"), ScoredValue.just(2.5, "b"), ScoredValue.just(Double.POSITIVE_INFINITY, "c")), 3L);
    equal(r.zrangeWithScores(k, 0, -1),
        List.of(ScoredValue.just(1, "a"), ScoredValue.just(2.5, "b"), ScoredValue.just(Double.POSITIVE_INFINITY, "c")));
    equal(r.zscore(k, "b"), 2.5);
    equal(r.zscore(k, "x"), null);
    equal(r.zincrby(k, 1, "a"), 2.0);
    equal(r.zrangebyscore(k, Range.create(2, 3)), List.of("a", "b"));
    equal(r.zrank(k, "c"), 2L);
  }

  static void streams(RedisCommands<String, String> r) {
    String k = key("stream");
    String first = r.xadd(k, Map.of("n", "1"));
    String second = r.xadd(k, Map.of("n", "2"));
    List<StreamMessage<String, String>> all =
        List.of(new StreamMessage<>(k, first, Map.of("n", "1")), new StreamMessage<>(k, second, Map.of("n", "2")));
    equal(r.xrange(k, Range.unbounded()), all);
    equal(r.xlen(k), 2L);
    equal(r.xgroupCreate(XReadArgs.StreamOffset.from(k, "0"), "g"), "OK");
    equal(r.xreadgroup(Consumer.from("g", "c"), XReadArgs.Builder.count(1), XReadArgs.StreamOffset.lastConsumed(k)), all.subList(0, 1));
    equal(r.xack(k, "g", first), 1L);
  }

  static void pipeline(RedisCommands<String, String> r) throws Exception {
    String k = key("pipeline");
    StatefulRedisConnection<String, String> c = r.getStatefulConnection();
    RedisAsyncCommands<String, String> a = c.async();
    c.setAutoFlushCommands(false);
    List<RedisFuture<String>> got = new ArrayList<>();
    RedisFuture<Long> wrong = null;
    for (int i = 0; i < 1000; i++) {
      a.set(k + ":" + i, String.valueOf(i));
      got.add(a.get(k + ":" + i));
      if (i == 500) wrong = a.lpush(k + ":" + i, "wrong type");
    }
    c.flushCommands();
    c.setAutoFlushCommands(true);
    for (int i = 0; i < 1000; i++) equal(got.get(i).get(60, TimeUnit.SECONDS), String.valueOf(i));
    try {
      throw new AssertionError("got " + wrong.get(60, TimeUnit.SECONDS) + ", want WRONGTYPE");
    } catch (ExecutionException error) {
      isTrue(error.getMessage().contains("WRONGTYPE"), error.getMessage());
    }
  }

  static void transaction(RedisCommands<String, String> r) throws Exception {
    String k = key("transaction");
    r.multi();
    r.set(k, "1");
    r.incr(k);
    r.get(k);
    equal(r.exec().stream().toList(), List.of("OK", 2L, "2"));
    r.multi();
    r.incr(k);
    r.lpush(k, "x");
    r.incr(k);
    List<Object> replies = r.exec().stream().toList();
    equal(List.of(replies.get(0), replies.get(2)), List.of(3L, 4L));
    isTrue(replies.get(1) instanceof RedisCommandExecutionException e && e.getMessage().startsWith("WRONGTYPE"), "got " + replies.get(1));
    r.multi();
    r.set(k, "discarded");
    equal(r.discard(), "OK");
    equal(r.get(k), "4");
  }

  static void watch(RedisCommands<String, String> r) {
    String k = key("watch");
    r.set(k, "1");
    equal(r.watch(k), "OK");
    try (StatefulRedisConnection<String, String> other = client.connect(uri)) {
      other.sync().set(k, "10");
    }
    r.multi();
    r.incr(k);
    isTrue(r.exec().wasDiscarded(), "EXEC ran though the key had changed");
    r.watch(k);
    String value = r.get(k);
    r.multi();
    r.set(k, String.valueOf(Integer.parseInt(value) + 1));
    equal(r.exec().stream().toList(), List.of("OK"));
    equal(r.get(k), "11");
  }

  static void blocking(RedisCommands<String, String> r) throws Exception {
    String k = key("{blocking}");
    try (StatefulRedisConnection<String, String> waiter = client.connect(uri)) {
      RedisFuture<KeyValue<String, String>> popped = waiter.async().blpop(60, k, key("{blocking}:other"));
      Thread.sleep(100); // most likely the push finds the client waiting
      r.rpush(k, "pushed");
      equal(popped.get(60, TimeUnit.SECONDS), KeyValue.just(k, "pushed"));
    }
    equal(r.blpop(0.05, k), null);
    r.rpush(k, "there");
    equal(r.brpop(1, k), KeyValue.just(k, "there"));
    r.rpush(k, "moved");
    equal(r.blmove(k, key("{blocking}:moved"), LMoveArgs.Builder.leftRight(), 1), "moved");
    r.zadd(key("{blocking}:bz"), 1.5, "a");
    equal(r.bzpopmin(1, key("{blocking}:bz")), KeyValue.just(key("{blocking}:bz"), ScoredValue.just(1.5, "a")));
  }

  static void pubsub(RedisCommands<String, String> r) throws Exception {
    String channel = key("channel");
    BlockingQueue<String> heard = new LinkedBlockingQueue<>();
    try (StatefulRedisPubSubConnection<String, String> c = client.connectPubSub(uri)) {
      c.addListener(new RedisPubSubAdapter<>() {
        @Override
        public void message(String channel, String message) {
          heard.add("message " + channel + " " + message);
        }

        @Override
        public void message(String pattern, String channel, String message) {
          heard.add("pmessage " + channel + " " + message);
        }
      });
      // The future of subscribe is complete when the server has confirmed it.
      c.sync().subscribe(channel);
      c.sync().psubscribe(channel + "*");
      equal(r.publish(channel, "news"), 2L);
      equal(new TreeSet<>(Arrays.asList(heard.poll(60, TimeUnit.SECONDS), heard.poll(60, TimeUnit.SECONDS))),
          new TreeSet<>(List.of("message " + channel + " news", "pmessage " + channel + " news")));
      c.sync().unsubscribe(channel);
      equal(r.publish(channel, "more"), 1L);
      equal(heard.poll(60, TimeUnit.SECONDS), "pmessage " + channel + " more");
    }
  }

  static void scan(RedisCommands<String, String> r) {
    Map<String, String> want = IntStream.range(0, 300).boxed().collect(Collectors.toMap(i -> key("scan") + ":" + i, i -> "1"));
    r.mset(want);
    Set<String> got = ScanIterator.scan(r, ScanArgs.Builder.matches(key("scan") + ":*").limit(50)).stream().collect(Collectors.toSet());
    equal(got, want.keySet());
    equal(r.keys(key("scan") + ":1?").size(), 10);
    r.hset(key("scan-hash"), IntStream.range(0, 200).boxed().collect(Collectors.toMap(i -> "f" + i, String::valueOf)));
    equal(ScanIterator.hscan(r, key("scan-hash")).stream().map(KeyValue::getKey).distinct().count(), 200L);
    r.sadd(key("scan-set"), IntStream.range(0, 200).mapToObj(i -> "m" + i).toArray(String[]::new));
    equal(ScanIterator.sscan(r, key("scan-set")).stream().distinct().count(), 200L);
    for (int i = 0; i < 200; i++) r.zadd(key("scan-zset"), i, "m" + i);
    equal(ScanIterator.zscan(r, key("scan-zset")).stream().filter(v -> v.getValue().equals("m7")).findFirst().get().getScore(), 7.0);
  }

  static void script(RedisCommands<String, String> r) throws Exception {
    String k = key("script");
    String body = "redis.call('SET', KEYS[1], ARGV[1]); return {redis.call('GET', KEYS[1]), 7, false}";
    equal(r.eval(body, ScriptOutputType.MULTI, new String[] {k}, "by a script"), Arrays.asList("by a script", 7L, null));
    equal(r.get(k), "by a script");
    String sum = r.scriptLoad("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    equal(r.evalsha(sum, ScriptOutputType.INTEGER, new String[] {key("script-n")}, "5"), 5L);
    equal(r.evalsha(sum, ScriptOutputType.INTEGER, new String[] {key("script-n")}, "5"), 10L);
    refused(() -> r.evalsha("0".repeat(40), ScriptOutputType.INTEGER), "NOSCRIPT");
    refused(() -> r.eval("return redis.error_reply('OWN own error')", ScriptOutputType.STATUS), "OWN own error");
  }

  static void errors(RedisCommands<String, String> r) throws Exception {
    String k = key("errors");
    r.set(k, "text");
    refused(() -> r.lpush(k, "1"), "WRONGTYPE Operation against a key holding the wrong kind of value");
    refused(() -> r.incr(k), "ERR value is not an integer or out of range");
    refused(() -> raw(r, "GET"), "ERR wrong number of arguments for 'get' command");
    refused(() -> raw(r, "NO-SUCH-COMMAND", "x"), "ERR unknown command 'NO-SUCH-COMMAND', with args beginning with: 'x'");
    refused(() -> raw(r, "SET", k, "v", "BAD"), "ERR syntax error");
    refused(() -> raw(r, "EXEC"), "ERR EXEC without MULTI");
    equal(r.get(k), "text");
  }

  public static void main(String[] args) {
    uri = RedisURI.create(args[0]);
    uri.setTimeout(Duration.ofSeconds(60));
    prefix = args[2];
    client = RedisClient.create(uri);
    client.setOptions(ClientOptions.builder()
        .protocolVersion(args[1].equals("3") ? ProtocolVersion.RESP3 : ProtocolVersion.RESP2).autoReconnect(false).build());
    Map<String, Body> checks = new LinkedHashMap<>();
    checks.put("connect", Check::connect);
    checks.put("select", Check::select);
    checks.put("strings", Check::strings);
    checks.put("binary", Check::binary);
    checks.put("expiry", Check::expiry);
    checks.put("hashes", Check::hashes);
    checks.put("lists", Check::lists);
    checks.put("sets", Check::sets);
    checks.put("sorted_sets", Check::sortedSets);
    checks.put("streams", Check::streams);
    checks.put("pipeline", Check::pipeline);
    checks.put("transaction", Check::transaction);
    checks.put("watch", Check::watch);
    checks.put("blocking", Check::blocking);
    checks.put("pubsub", Check::pubsub);
    checks.put("scan", Check::scan);
    checks.put("script", Check::script);
    checks.put("errors", Check::errors);
    boolean failed = false;
    for (Map.Entry<String, Body> check : checks.entrySet()) {
      try (StatefulRedisConnection<String, String> c = client.connect(uri)) {
        check.getValue().run(c.sync());
        System.out.println("ok " + check.getKey());
      } catch (Throwable error) {
        failed = true;
        error.printStackTrace();
        System.out.println(("FAILED " + check.getKey() + ": " + error).replace('\n', ' '));
      }
    }
    client.shutdown(Duration.ZERO, Duration.ofSeconds(5));
    System.exit(failed ? 1 : 0);
  }
}
