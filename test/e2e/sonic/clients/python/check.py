"""Exercises a Redis endpoint with redis-py. See doc.go for the arguments and the output."""

import sys
import threading
import time
import traceback

import redis

URL, PROTOCOL, PREFIX = sys.argv[1], int(sys.argv[2]), sys.argv[3]
PATIENCE = 60  # seconds
CHECKS = []


def check(function):
    CHECKS.append((function.__name__.replace("check_", ""), function))
    return function


def connect(**options):
    return redis.Redis.from_url(URL, protocol=PROTOCOL, socket_timeout=PATIENCE, **options)


def key(name):
    return f"{PREFIX}:{name}"


def equal(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


def refused(call, text):
    try:
        got = call()
    except redis.exceptions.ResponseError as error:
        if text not in str(error):
            raise AssertionError(f"error {error}, want {text}")
        return
    raise AssertionError(f"got {got!r}, want the error {text}")


@check
def check_connect(r):
    equal(r.ping(), True)
    equal(r.echo("hello"), b"hello")
    named = connect(client_name="stock-client")
    name = named.client_getname()
    equal(name if isinstance(name, bytes) else name.encode(), b"stock-client")
    if named.client_id() <= 0:
        raise AssertionError("no client id")
    if not r.info("server")["redis_version"]:
        raise AssertionError("no version")


@check
def check_select(r):
    other = redis.Redis.from_url(URL, protocol=PROTOCOL, db=1, socket_timeout=PATIENCE)
    r.set(key("db"), "0")
    equal(other.get(key("db")), None)
    other.set(key("db"), "1")
    equal(r.get(key("db")), b"0")
    equal(other.get(key("db")), b"1")


@check
def check_strings(r):
    k = key("string")
    equal(r.get(k), None)
    equal(r.set(k, "v", nx=True), True)
    equal(r.set(k, "w", nx=True), None)
    equal(r.set(k, "w", get=True), b"v")
    equal(r.append(k, "xyz"), 4)
    equal(r.getrange(k, 1, 2), b"xy")
    equal(r.incr(key("number"), 41), 41)
    equal(r.incrbyfloat(key("number"), 0.5), 41.5)
    equal(r.mset({key("m1"): 1, key("m2"): 2}), True)
    equal(r.mget(key("m1"), key("missing"), key("m2")), [b"1", None, b"2"])
    equal(r.exists(key("m1"), key("m2"), key("missing")), 2)
    equal(r.delete(key("m1"), key("m2"), key("missing")), 2)
    equal(r.type(k), b"string")


@check
def check_binary(r):
    every = bytes(range(256)) + b"\r\n$-1\r\n*3\r\n"
    r.set(key("b").encode() + every, every)
    equal(r.get(key("b").encode() + every), every)
    large = every * 5000
    r.set(key("large"), large)
    equal(r.get(key("large")), large)
    r.set(key("empty"), b"")
    equal(r.get(key("empty")), b"")


@check
def check_expiry(r):
    k = key("expiry")
    r.set(k, "v", px=60_000)
    if not 50_000 < r.pttl(k) <= 60_000:
        raise AssertionError(f"pttl {r.pttl(k)}")
    equal(r.persist(k), True)
    equal(r.ttl(k), -1)
    equal(r.pexpire(k, 50), True)
    give_up = time.monotonic() + PATIENCE
    while r.exists(k):
        if time.monotonic() > give_up:
            raise AssertionError("never expired")
        time.sleep(0.01)
    equal(r.ttl(k), -2)


@check
def check_hashes(r):
    k = key("hash")
    equal(r.hset(k, mapping={"a": 1, "b": "two"}), 2)
    equal(r.hgetall(k), {b"a": b"1", b"b": b"two"})
    equal(r.hmget(k, "a", "x"), [b"1", None])
    equal(r.hincrby(k, "a", 5), 6)
    equal(r.hdel(k, "a", "x"), 1)
    equal(r.hgetall(key("missing")), {})


@check
def check_lists(r):
    k = key("list")
    equal(r.rpush(k, "a", "b", "c"), 3)
    equal(r.lrange(k, 0, -1), [b"a", b"b", b"c"])
    equal(r.lpop(k), b"a")
    equal(r.rpop(k, 5), [b"c", b"b"])
    equal(r.lpop(k), None)
    equal(r.lpop(k, 2), None)


@check
def check_sets(r):
    k = key("set")
    equal(r.sadd(k, "a", "b", "c"), 3)
    equal(r.smembers(k), {b"a", b"b", b"c"})
    equal(r.sismember(k, "x"), 0)
    equal(r.smismember(k, ["a", "x"]), [1, 0])
    popped = r.spop(k)
    equal(r.scard(k), 2)
    if popped in r.smembers(k):
        raise AssertionError("popped and still there")


@check
def check_sorted_sets(r):
    k = key("zset")
    equal(r.zadd(k, {"a": 1, "b": 2.5, "c": float("inf")}), 3)
    pairs = [tuple(pair) for pair in r.zrange(k, 0, -1, withscores=True)]
    equal(pairs, [(b"a", 1.0), (b"b", 2.5), (b"c", float("inf"))])
    equal(r.zscore(k, "b"), 2.5)
    equal(r.zscore(k, "x"), None)
    equal(r.zincrby(k, 1, "a"), 2.0)
    equal(r.zrangebyscore(k, 2, 3), [b"a", b"b"])
    equal(r.zrank(k, "c"), 2)


@check
def check_streams(r):
    k = key("stream")
    first = r.xadd(k, {"n": 1})
    second = r.xadd(k, {"n": 2})
    equal(r.xrange(k), [(first, {b"n": b"1"}), (second, {b"n": b"2"})])
    equal(r.xlen(k), 2)
    equal(r.xgroup_create(k, "g", "0"), True)
    got = r.xreadgroup("g", "c", {k: ">"}, count=1)
    entries = got[k.encode()][0] if isinstance(got, dict) else got[0][1]
    equal(entries, [(first, {b"n": b"1"})])
    equal(r.xack(k, "g", first), 1)


@check
def check_pipeline(r):
    k = key("pipeline")
    pipe = r.pipeline(transaction=False)
    for i in range(1000):
        pipe.set(f"{k}:{i}", i)
        pipe.get(f"{k}:{i}")
        if i == 500:
            pipe.lpush(f"{k}:{i}", "wrong type")
    replies = pipe.execute(raise_on_error=False)
    error = replies.pop(1002)
    if "WRONGTYPE" not in str(error):
        raise AssertionError(f"got {error!r}, want WRONGTYPE")
    equal(replies[1::2], [str(i).encode() for i in range(1000)])


@check
def check_transaction(r):
    k = key("transaction")
    with r.pipeline(transaction=True) as pipe:
        pipe.set(k, 1).incr(k).get(k)
        equal(pipe.execute(), [True, 2, b"2"])
    with r.pipeline(transaction=True) as pipe:
        pipe.incr(k).lpush(k, "x").incr(k)
        replies = pipe.execute(raise_on_error=False)
    equal([replies[0], replies[2]], [3, 4])
    if "WRONGTYPE" not in str(replies[1]):
        raise AssertionError(f"got {replies[1]!r}, want WRONGTYPE")
    with r.pipeline(transaction=True) as pipe:
        pipe.set(k, "lost").execute_command("NO-SUCH-COMMAND")
        refused(pipe.execute, "unknown command")
    equal(r.get(k), b"4")


@check
def check_watch(r):
    k = key("watch")
    r.set(k, 1)
    with r.pipeline() as pipe:
        pipe.watch(k)
        r.set(k, 10)
        pipe.multi()
        pipe.incr(k)
        try:
            pipe.execute()
        except redis.exceptions.WatchError:
            pass
        else:
            raise AssertionError("EXEC ran though the key had changed")
    with r.pipeline() as pipe:
        pipe.watch(k)
        value = int(pipe.get(k))
        pipe.multi()
        pipe.set(k, value + 1)
        equal(pipe.execute(), [True])
    equal(r.get(k), b"11")


@check
def check_blocking(r):
    k = key("{blocking}")
    got = []
    waiter = threading.Thread(target=lambda: got.append(connect().blpop([k, key("{blocking}:other")], timeout=PATIENCE)))
    waiter.start()
    time.sleep(0.1)  # most likely the push finds the client waiting
    r.rpush(k, "pushed")
    waiter.join(PATIENCE)
    equal([tuple(pair) for pair in got], [(k.encode(), b"pushed")])
    equal(r.blpop([k], timeout=0.05), None)
    r.rpush(k, "there")
    equal(tuple(r.brpop([k], timeout=1)), (k.encode(), b"there"))
    r.rpush(k, "moved")
    equal(r.blmove(k, key("{blocking}:moved"), 1), b"moved")
    r.zadd(key("{blocking}:bz"), {"a": 1.5})
    equal(tuple(r.bzpopmin([key("{blocking}:bz")], 1)), (key("{blocking}:bz").encode(), b"a", 1.5))


@check
def check_pubsub(r):
    channel = key("channel")
    pubsub = connect().pubsub()
    pubsub.subscribe(channel)
    pubsub.psubscribe(channel + "*")

    def message():
        got = pubsub.get_message(timeout=PATIENCE)
        if got is None:
            raise AssertionError("no message")
        return got["type"], got["channel"], got["data"]

    equal(message(), ("subscribe", channel.encode(), 1))
    equal(message(), ("psubscribe", (channel + "*").encode(), 2))
    equal(r.publish(channel, "news"), 2)
    equal(sorted([message(), message()]), [("message", channel.encode(), b"news"), ("pmessage", channel.encode(), b"news")])
    pubsub.unsubscribe(channel)
    equal(message(), ("unsubscribe", channel.encode(), 1))
    equal(r.publish(channel, "more"), 1)
    equal(message(), ("pmessage", channel.encode(), b"more"))
    pubsub.close()


@check
def check_scan(r):
    want = {f"{key('scan')}:{i}".encode() for i in range(300)}
    pipe = r.pipeline(transaction=False)
    for k in want:
        pipe.set(k, 1)
    pipe.execute()
    equal(set(r.scan_iter(match=key("scan") + ":*", count=50)), want)
    equal(set(r.keys(key("scan") + ":1?")), {f"{key('scan')}:1{i}".encode() for i in range(10)})
    r.hset(key("scan-hash"), mapping={f"f{i}": i for i in range(200)})
    equal(len(dict(r.hscan_iter(key("scan-hash")))), 200)
    r.sadd(key("scan-set"), *range(200))
    equal(len(set(r.sscan_iter(key("scan-set")))), 200)
    r.zadd(key("scan-zset"), {f"m{i}": i for i in range(200)})
    equal(dict(r.zscan_iter(key("scan-zset")))[b"m7"], 7.0)


@check
def check_script(r):
    k = key("script")
    body = "redis.call('SET', KEYS[1], ARGV[1]); return {redis.call('GET', KEYS[1]), 7, false}"
    equal(r.eval(body, 1, k, "by a script"), [b"by a script", 7, None])
    equal(r.get(k), b"by a script")
    script = r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    equal(script(keys=[key("script-n")], args=[5]), 5)
    equal(script(keys=[key("script-n")], args=[5]), 10)
    refused(lambda: r.evalsha("0" * 40, 0), "No matching script")
    refused(lambda: r.eval("return redis.error_reply('OWN own error')", 0), "own error")


@check
def check_errors(r):
    k = key("errors")
    r.set(k, "text")
    refused(lambda: r.lpush(k, 1), "WRONGTYPE Operation against a key holding the wrong kind of value")
    refused(lambda: r.incr(k), "value is not an integer or out of range")
    refused(lambda: r.execute_command("GET"), "wrong number of arguments for 'get' command")
    refused(lambda: r.execute_command("NO-SUCH-COMMAND", "x"), "unknown command 'NO-SUCH-COMMAND', with args beginning with: 'x'")
    refused(lambda: r.execute_command("SET", k, "v", "BAD"), "syntax error")
    refused(lambda: r.execute_command("EXEC"), "EXEC without MULTI")
    equal(r.get(k), b"text")


def main():
    failed = False
    for name, function in CHECKS:
        try:
            with connect() as client:
                function(client)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed = True
            traceback.print_exc()
            print(f"FAILED {name}: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
    sys.exit(1 if failed else 0)


main()
