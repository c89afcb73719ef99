package sonic_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// raw speaks the protocol itself.
type raw struct {
	net.Conn
	in *bufio.Reader
}

func (s *service) raw(t *testing.T) raw {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", s.address(t, "redis"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(await.Patience)))
	return raw{conn, bufio.NewReader(conn)}
}

// ask sends text and returns the next line, without its end; "" for a connection that was closed.
func (r raw) ask(t *testing.T, text string) string {
	t.Helper()
	if _, err := io.WriteString(r, text); err != nil {
		return ""
	}
	line, err := r.in.ReadString('\n')
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it was neither answered nor closed")
	return strings.TrimSuffix(line, "\r\n")
}

// TestEachLimitOfTheConfiguration has its effect.
func TestEachLimitOfTheConfiguration(t *testing.T) {
	t.Parallel()
	with := func(limits string) *service {
		s := run(t, stack.PrivateRedis(t), "users: [{name: default, password: p}]\nlimits: {"+limits+"}")
		s.open(t)
		return s
	}
	s := with("bulk_bytes: 32KiB, query_bytes: 128KiB, auth_timeout: 1h, idle_timeout: 1h")
	long := func(n int) string { return "$" + strconv.Itoa(n) + "\r\n" + strings.Repeat("x", n) + "\r\n" }
	for what, row := range map[string]struct{ text, want string }{
		"bulk before AUTH":             {"*2\r\n$4\r\nAUTH\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length"},
		"arguments before AUTH":        {"*11\r\n", "-ERR Protocol error: unauthenticated multibulk length"},
		"within bulk before AUTH":      {"*2\r\n$4\r\nAUTH\r\n" + long(16384), "-WRONGPASS invalid username-password pair or user is disabled."},
		"within arguments before AUTH": {"*10\r\n$3\r\nDEL\r\n" + strings.Repeat(long(3), 9), "-NOAUTH Authentication required."},
		"bulk_bytes":                   {"auth p\r\n*2\r\n$3\r\nGET\r\n$32769\r\n", "-ERR Protocol error: invalid bulk length"},
		"within bulk_bytes":            {"auth p\r\n*2\r\n$3\r\nGET\r\n" + long(32768), "$-1"},
		"arguments":                    {"auth p\r\n*1048577\r\n", "-ERR Protocol error: invalid multibulk length"},
		"within arguments":             {"auth p\r\n*20\r\n$3\r\nDEL\r\n" + strings.Repeat(long(3), 19), ":0"},
		"query_bytes":                  {"auth p\r\n*6\r\n$3\r\nDEL\r\n" + strings.Repeat(long(32000), 5), ""}, // as Redis does it
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := s.raw(t)
			if rest, ok := strings.CutPrefix(row.text, "auth p\r\n"); ok {
				require.Equal(t, "+OK", c.ask(t, "auth p\r\n"))
				row.text = rest
			}
			require.Equal(t, row.want, c.ask(t, row.text))
		})
	}
	t.Run("auth_timeout", func(t *testing.T) {
		t.Parallel()
		begin := time.Now()
		require.Empty(t, with("auth_timeout: 300ms, idle_timeout: 1h").raw(t).ask(t, ""))
		require.Greater(t, time.Since(begin), 250*time.Millisecond)
	})
	// On a busy machine a client may be too late: then the next one.
	const idle = 500 * time.Millisecond
	t.Run("idle_timeout, logged in", func(t *testing.T) {
		t.Parallel()
		s := with("idle_timeout: " + idle.String())
		require.Eventually(t, func() bool {
			begin := time.Now()
			c := s.raw(t)
			return c.ask(t, "auth p\r\n") == "+OK" && c.ask(t, "") == "" && time.Since(begin) > idle-50*time.Millisecond
		}, await.Patience, time.Millisecond)
	})
	t.Run("idle_timeout, subscribed", func(t *testing.T) {
		t.Parallel()
		s := with("idle_timeout: " + idle.String())
		require.Eventually(t, func() bool {
			c := s.raw(t)
			if c.ask(t, "auth p\r\nsubscribe c\r\n") != "+OK" || c.ask(t, "") != "*3" {
				return false
			}
			require.NoError(t, c.SetReadDeadline(time.Now().Add(idle+idle/2)))
			_, err := io.Copy(io.Discard, c.in)
			return errors.Is(err, os.ErrDeadlineExceeded) // it stays
		}, await.Patience, time.Millisecond)
	})
}

func TestLimitsOfClientsAndOutput(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t)
	s := run(t, srv, "limits: {clients: 2, output_bytes: 64KiB}")
	s.open(t)
	first, second := s.raw(t), s.raw(t)
	require.Equal(t, "+PONG", first.ask(t, "ping\r\n"))
	require.Equal(t, "+PONG", second.ask(t, "ping\r\n"))
	require.Equal(t, "-ERR max number of clients reached", s.raw(t).ask(t, ""))

	require.NoError(t, srv.Client(t).Set(t.Context(), "large", strings.Repeat("x", 4<<20), 0).Err())
	_, err := io.WriteString(first, strings.Repeat("get large\r\n", 20))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return strings.HasPrefix(s.raw(t).ask(t, "ping\r\n"), "+PONG") // there is room again: the first was disconnected
	}, await.Patience, 20*time.Millisecond)
	n, _ := io.Copy(io.Discard, first)
	require.Less(t, n, int64(20*4<<20))
}

// TestPublishOfTheConfiguration: only with replicate PUBLISH is an effect for the other zones.
func TestPublishOfTheConfiguration(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t)
	effects := func(text string) int64 {
		s := run(t, srv, text)
		s.open(t)
		c := s.client(t, nil)
		sub := c.Subscribe(t.Context(), "news")
		defer func() { _ = sub.Close() }()
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
		before := srv.Client(t).XLen(t.Context(), "{sonic:0}out").Val()
		require.Equal(t, int64(1), c.Publish(t.Context(), "news", "hello").Val())
		got, err := sub.ReceiveMessage(t.Context())
		require.NoError(t, err)
		require.Equal(t, "hello", got.Payload)
		return srv.Client(t).XLen(t.Context(), "{sonic:0}out").Val() - before
	}
	require.Equal(t, int64(0), effects("{}"))
	require.Equal(t, int64(1), effects("publish: replicate"))
}

// TestWaitForRedis: commands wait so long for a Redis that is unavailable.
func TestWaitForRedis(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t)
	s := run(t, srv, "redis: {wait: 300ms}")
	c := s.client(t, func(o *redis.Options) { o.ReadTimeout = await.Patience })
	require.NoError(t, c.Ping(t.Context()).Err())
	require.NoError(t, srv.Kill())
	// It is waited for, and not as long as by default. On a busy machine the next command tells.
	require.Eventually(t, func() bool {
		begin := time.Now()
		err := c.Get(t.Context(), "a").Err()
		took := time.Since(begin)
		return err != nil && took > 200*time.Millisecond && took < sonic.DefaultConfig().Redis.Wait
	}, await.Patience, 10*time.Millisecond)
}
