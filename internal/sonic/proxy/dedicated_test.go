package proxy_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// TestClientSideCaching: invalidations come as pushes, also for writes that functions make.
func TestClientSideCaching(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c, other := dial(t, e.addr), dial(t, e.addr)
	c.ask(t, "HELLO", "3")
	require.Equal(t, "+OK\r\n", c.ask(t, "CLIENT", "TRACKING", "ON"))
	require.Equal(t, "_\r\n", c.ask(t, "GET", "a"))
	require.Equal(t, "+OK\r\n", other.ask(t, "SET", "a", "1"))
	got, err := c.reply()
	require.NoError(t, err)
	assert.Equal(t, ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n", got)
	assert.Equal(t, "$1\r\n1\r\n", c.ask(t, "GET", "a"))
	assert.Contains(t, c.ask(t, "CLIENT", "TRACKING", "ON", "REDIRECT", "1"), "-ERR Sonic refuses")
}

// TestMessagesAmongReplies mixes messages with replies, in both protocols.
func TestMessagesAmongReplies(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	for _, proto := range []string{"2", "3"} {
		sub, pub := dial(t, e.addr), dial(t, e.addr)
		sub.ask(t, "HELLO", proto)
		letter := map[string]string{"2": "*", "3": ">"}[proto]
		sub.send(t, "subscribe a b\r\nping\r\n")
		for _, want := range []string{
			letter + "3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", letter + "3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n",
			map[string]string{"2": "*2\r\n$4\r\npong\r\n$0\r\n\r\n", "3": "+PONG\r\n"}[proto],
		} {
			got, err := sub.reply()
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		for range 3 {
			require.Equal(t, ":1\r\n", pub.ask(t, "PUBLISH", "a", "x"))
			got, err := sub.reply()
			require.NoError(t, err)
			require.Equal(t, letter+"3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n", got)
		}
		// Who has no subscription any more may run everything: a value that looks like a message is
		// none.
		sub.send(t, "unsubscribe\r\ndel l\r\nrpush l message a x\r\nlrange l 0 -1\r\n")
		for range 4 {
			_, err := sub.reply()
			require.NoError(t, err)
		}
		got, err := sub.reply()
		require.NoError(t, err)
		require.Equal(t, "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n", got)
		require.Equal(t, "+RESET\r\n", sub.ask(t, "RESET"))
		require.Equal(t, "$-1\r\n", sub.ask(t, "GET", "none"))
	}
}

// TestBlockedClientsAreWoken: a write of any client wakes a client that waits for its key.
func TestBlockedClientsAreWoken(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	var all []*connection
	for range 6 {
		all = append(all, dial(t, e.addr))
	}
	for i, c := range all {
		c.send(t, string(resp.AppendCommand(nil, "BLPOP", "l", "0")))
		require.Equal(t, ":1\r\n", all[(i+1)%len(all)].ask(t, "RPUSH", "l", "x"))
		got, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, "*2\r\n$1\r\nl\r\n$1\r\nx\r\n", got)
	}
}

// TestNoReplyIsOlderThanAMessageBeforeIt: a client of RESP3 that keeps what it has read until a message
// says that it has changed does not read the former value behind the message.
func TestNoReplyIsOlderThanAMessageBeforeIt(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c, writer := dial(t, e.addr), dial(t, e.addr)
	c.ask(t, "HELLO", "3")
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "k", "0"))
	c.ask(t, "SUBSCRIBE", "changed")
	const last = 2000
	var writes sync.WaitGroup
	writes.Go(func() {
		for i := 1; i <= last; i++ {
			if _, err := fmt.Fprintf(writer, "set k %d\r\npublish changed %d\r\n", i, i); !assert.NoError(t, err) {
				return
			}
			for range 2 {
				_, err := writer.reply()
				assert.NoError(t, err)
			}
		}
	})
	for told := 0; told < last; {
		c.send(t, strings.Repeat("get k\r\n", 20))
		for n := 0; n < 20; {
			reply, err := c.reply()
			require.NoError(t, err)
			words := strings.Fields(reply)
			value, err := strconv.Atoi(words[len(words)-1])
			require.NoError(t, err, reply)
			if reply[0] == '>' {
				told = value
				continue
			}
			n++
			require.GreaterOrEqual(t, value, told)
		}
	}
	writes.Wait()
	require.Equal(t, "+OK\r\n", c.ask(t, "SELECT", "1"))
	require.Equal(t, "_\r\n", c.ask(t, "GET", "k"))
	require.Contains(t, c.ask(t, "HELLO", "2"), "proto")
	require.Contains(t, c.ask(t, "UNSUBSCRIBE"), "changed")
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "k"))
	require.Equal(t, "+OK\r\n", c.ask(t, "SELECT", "0"))
	require.Contains(t, c.ask(t, "HELLO", "3"), "proto")
	require.Equal(t, "$4\r\n2000\r\n", c.ask(t, "GET", "k"))
}
