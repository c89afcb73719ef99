package proxy_test

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadsAllocateNothing counts allocations of the whole process while commands pass.
func TestReadsAllocateNothing(t *testing.T) {
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "0123456789"))
	const pipeline, rounds = 16, 2000
	request := bytes.Repeat([]byte("*2\r\n$3\r\nGET\r\n$1\r\na\r\n"), pipeline)
	reply := make([]byte, pipeline*len("$10\r\n0123456789\r\n"))
	run := func() {
		for range rounds {
			if _, err := c.Write(request); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c.Conn, reply); err != nil {
				t.Fatal(err)
			}
		}
	}
	run()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	perCommand := float64(after.Mallocs-before.Mallocs) / (pipeline * rounds)
	t.Logf("%.4f allocations per command", perCommand)
	assert.Less(t, perCommand, 0.01)
}

// TestIdleClients holds the memory of clients that have run commands and wait.
func TestIdleClients(t *testing.T) {
	e := start(t, opened(t), nil)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapInuse + stats.StackInuse
	}
	clients := make([]*connection, 1000)
	require.Equal(t, "+OK\r\n", dial(t, e.addr).ask(t, "SET", "a", "1"))
	without := heap()
	for i := range clients {
		clients[i] = dial(t, e.addr)
		clients[i].in = nil // the test's own memory does not count
	}
	all := func() {
		reply := make([]byte, 7)
		for _, c := range clients {
			_, err := c.Write([]byte("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n"))
			require.NoError(t, err)
			_, err = io.ReadFull(c.Conn, reply[:5])
			require.NoError(t, err)
			_, err = io.ReadFull(c.Conn, reply)
			require.NoError(t, err)
		}
	}
	all()
	with := heap()
	perClient := (float64(with) - float64(without)) / 1000
	t.Logf("%.0f bytes per idle client, with the test's own socket", perClient)
	assert.Less(t, perClient, float64(20<<10))
}
