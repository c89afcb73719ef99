package script_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// rawConn is a connection to Redis that shows replies byte by byte.
type rawConn struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func dial(t testing.TB, srv *stack.RedisServer, resp int) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	w := &rawConn{t: t, conn: conn, r: bufio.NewReader(conn)}
	w.do("HELLO", strconv.Itoa(resp))
	return w
}

// do returns the reply as it came.
func (w *rawConn) do(args ...string) string {
	w.t.Helper()
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(w.conn, request.String()); err != nil {
		w.t.Fatal(err)
	}
	var reply strings.Builder
	if err := w.copyReply(&reply); err != nil {
		w.t.Fatalf("%q: %v", args, err)
	}
	return reply.String()
}

func (w *rawConn) copyReply(to *strings.Builder) error {
	line, err := w.r.ReadString('\n')
	if err != nil {
		return err
	}
	to.WriteString(line)
	n := 0
	switch line[0] {
	case '$', '=', '*', '~', '>', '%':
		if n, err = strconv.Atoi(strings.TrimSpace(line[1:])); err != nil {
			return err
		}
	}
	switch line[0] {
	case '$', '=':
		if n < 0 {
			return nil
		}
		_, err := io.CopyN(to, w.r, int64(n)+2)
		return err
	case '%':
		n *= 2
	}
	for range n {
		if err := w.copyReply(to); err != nil {
			return err
		}
	}
	return nil
}

// translated does with a reply what the proxy does.
func translated(command []string, resp int, reply string) string {
	switch script.TranslationOf(strings.ToLower(command[0])) {
	case script.NullArrayOfCount:
		if resp == 2 && reply == "$-1\r\n" && len(command) == 3 {
			return "*-1\r\n"
		}
	case script.NullArray:
		if resp == 2 && reply == "$-1\r\n" {
			return "*-1\r\n"
		}
	case script.Integer:
		if reply[0] == '+' {
			return ":" + reply[1:]
		}
		if reply[0] == '*' {
			return strings.ReplaceAll(reply, "\n+", "\n:")
		}
	case script.Unchanged:
	}
	return reply
}

// An effect is a decoded array of the outbox.
type effect []string

// effectsOf decodes the effects of one entry.
func effectsOf(e string) ([]effect, error) {
	var all []effect
	for len(e) > 0 {
		var n int
		switch b := e[0]; {
		case b&0xf0 == 0x90:
			n, e = int(b&0x0f), e[1:]
		case b == 0xdc && len(e) > 2:
			n, e = int(binary.BigEndian.Uint16([]byte(e[1:3]))), e[3:]
		default:
			return nil, fmt.Errorf("no array: byte %x", b)
		}
		var one effect
		for range n {
			var size int
			if e == "" {
				return nil, errors.New("cut short")
			}
			switch b := e[0]; {
			case b&0xe0 == 0xa0:
				size, e = int(b&0x1f), e[1:]
			case b == 0xd9:
				size, e = int(e[1]), e[2:]
			case b == 0xda:
				size, e = int(binary.BigEndian.Uint16([]byte(e[1:3]))), e[3:]
			case b == 0xdb:
				size, e = int(binary.BigEndian.Uint32([]byte(e[1:5]))), e[5:]
			default:
				return nil, fmt.Errorf("no string: byte %x", b)
			}
			if size > len(e) {
				return nil, errors.New("cut short")
			}
			one, e = append(one, e[:size]), e[size:]
		}
		all = append(all, one)
	}
	return all, nil
}

// replay does what an effect says, whatever Redis holds. ctx's connection is c's.
func replay(ctx context.Context, c *redis.Conn, e effect) error {
	op, db := e[0], e[2]
	if op == "P" {
		return nil
	}
	if err := c.Do(ctx, "SELECT", db).Err(); err != nil {
		return err
	}
	key := e[3]
	do := func(args ...any) error {
		err := c.Do(ctx, args...).Err()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	}
	with := func(command string, rest []string) error {
		args := []any{command, key}
		for _, r := range rest {
			args = append(args, r)
		}
		return do(args...)
	}
	expire := func(pxat string) error {
		if pxat == "" {
			return do("PERSIST", key)
		}
		return do("PEXPIREAT", key, pxat)
	}
	switch op {
	case "S":
		if e[5] == "" {
			return do("SET", key, e[4])
		}
		return do("SET", key, e[4], "PXAT", e[5])
	case "D":
		return do("DEL", key)
	case "R":
		pxat := e[5]
		if pxat == "" {
			pxat = "0"
		}
		return do("RESTORE", key, pxat, e[4], "REPLACE", "ABSTTL")
	case "L":
		rest := e[8:]
		if e[7] == "LMOVE" {
			rest = append([]string{key}, rest...)
		}
		command := func() error { return with(e[7], rest) }
		if e[7] == "COPY" {
			command = func() error {
				return errors.Join(do("SELECT", e[9]), do("COPY", e[8], key, "DB", db, "REPLACE"), do("SELECT", db))
			}
		}
		if err := command(); err != nil {
			return err
		}
		kind, err := c.Type(ctx, key).Result()
		if err != nil {
			return err
		}
		length, err := c.Do(ctx, map[string]string{"string": "STRLEN", "list": "LLEN", "stream": "XLEN"}[kind], key).Int()
		if err != nil {
			return err
		}
		if strconv.Itoa(length) != e[6] {
			return fmt.Errorf("%q makes %d values", e, length)
		}
		return expire(e[5])
	case "E":
		return expire(e[4])
	case "H", "A", "Z":
		if err := with(map[string]string{"H": "HSET", "A": "SADD", "Z": "ZADD"}[op], e[5:]); err != nil {
			return err
		}
		return expire(e[4])
	case "h", "a", "z":
		return with(map[string]string{"h": "HDEL", "a": "SREM", "z": "ZREM"}[op], e[5:])
	case "I":
		return do("INCRBY", key, e[4])
	case "i":
		return do("HINCRBY", key, e[4], e[5])
	case "j":
		return do("ZINCRBY", key, e[5], e[4])
	default:
		return fmt.Errorf("unknown op %q", op)
	}
}

// holdings returns what databases 0, 3 and 5 hold, one line per key, without state keys. With
// expiries, a line ends with the key's.
func holdings(ctx context.Context, t testing.TB, c *redis.Conn, expiries bool) []string {
	t.Helper()
	var lines []string
	for _, db := range []int{0, 3, 5} {
		if err := c.Do(ctx, "SELECT", db).Err(); err != nil {
			t.Fatal(err)
		}
		keys, err := c.Keys(ctx, "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		sort.Strings(keys)
		keys = slices.DeleteFunc(keys, isStateKey)
		kinds, held := make([]*redis.StatusCmd, len(keys)), make([]redis.Cmder, len(keys))
		ends := make([]*redis.DurationCmd, len(keys))
		_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, key := range keys {
				kinds[i], ends[i] = p.Type(ctx, key), p.PExpireTime(ctx, key)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		streams := make([]*redis.XInfoStreamCmd, len(keys))
		_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, key := range keys {
				switch kind := kinds[i].Val(); kind {
				case "string":
					held[i] = p.Get(ctx, key)
				case "list":
					held[i] = p.LRange(ctx, key, 0, -1)
				case "set":
					held[i] = p.SMembers(ctx, key)
				case "hash":
					held[i] = p.HGetAll(ctx, key) // printed in order of the fields
				case "zset":
					held[i] = p.ZRangeWithScores(ctx, key, 0, -1)
				case "stream":
					held[i], streams[i] = p.XRange(ctx, key, "-", "+"), p.XInfoStream(ctx, key)
				default:
					return fmt.Errorf("%s is of type %s", key, kind)
				}
			}
			return nil
		})
		if err != nil && len(keys) > 0 {
			t.Fatal(err)
		}
		for i, key := range keys {
			if set, ok := held[i].(*redis.StringSliceCmd); ok && kinds[i].Val() == "set" {
				sort.Strings(set.Val())
			}
			line := fmt.Sprintf("%d %s %s %q", db, key, kinds[i].Val(), valueOf(held[i]))
			if streams[i] != nil {
				info := streams[i].Val()
				line += fmt.Sprint(" ", info.LastGeneratedID, info.EntriesAdded, info.MaxDeletedEntryID)
			}
			if at := ends[i].Val(); expiries {
				line += fmt.Sprint(" ", int64(at))
			} else if at > 0 {
				line += " expires"
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// valueOf returns what a reading command replied.
func valueOf(read redis.Cmder) string {
	switch read := read.(type) {
	case *redis.StringCmd:
		return read.Val()
	case *redis.StringSliceCmd:
		return fmt.Sprintf("%q", read.Val())
	case *redis.MapStringStringCmd:
		return fmt.Sprintf("%q", read.Val())
	case *redis.ZSliceCmd:
		return fmt.Sprint(read.Val())
	default:
		return read.String()
	}
}

// function returns a write as the proxy sends it.
func function(mode callMode, command []string) []string {
	return append([]string{
		"FCALL", "sonic_" + strings.ToLower(command[0]), "1", script.KeysOf(0).Outbox, mode.String(),
	}, command[1:]...)
}

// open loads the library, and makes it take writes as zone "a" with others.
func open(ctx context.Context, t testing.TB, c script.Doer, others []string, policies ...string) {
	t.Helper()
	if err := script.Load(ctx, c); err != nil {
		t.Fatal(err)
	}
	args := []any{"FCALL", "sonic_open", 1, script.KeysOf(0).Outbox, "a", 1, "0-0", "", len(others)}
	for _, o := range others {
		args = append(args, o)
	}
	for _, p := range policies {
		args = append(args, p)
	}
	if err := c.Do(ctx, args...).Err(); err != nil {
		t.Fatal(err)
	}
}

// entries returns the effects of each entry of the outbox, and empties it.
func entries(ctx context.Context, t testing.TB, c *redis.Conn) [][]effect {
	t.Helper()
	if err := c.Do(ctx, "SELECT", 0).Err(); err != nil {
		t.Fatal(err)
	}
	out := script.KeysOf(0).Outbox
	var all [][]effect
	var joiner wire.Joiner
	for _, m := range c.XRange(ctx, out, "-", "+").Val() {
		e, ok, err := joiner.Add(m.ID, m.Values)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		one, err := effectsOf(e.Effects)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	c.XTrimMaxLen(ctx, out, 0)
	return all
}
