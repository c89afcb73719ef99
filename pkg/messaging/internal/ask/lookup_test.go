package ask_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/ask"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m.Run) }

// The kinds of the protocol's commands.
const (
	connect, connected     = 2, 3
	lookup, lookupResponse = 23, 24
)

// broker answers CONNECT, and lookups with what answer returns for its own address.
func broker(t *testing.T, answer func(self string) []byte) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn, func() []byte { return answer(l.Addr().String()) })
		}
	}()
	t.Cleanup(func() {
		assert.NoError(t, l.Close())
		<-done
	})
	return l.Addr().String()
}

// serve serves a connection until the client closes it.
func serve(conn net.Conn, answer func() []byte) {
	defer func() { _ = conn.Close() }()
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, frame); err != nil {
			return
		}
		kind, body := connected, []byte(nil)
		if asked, _ := protowire.ConsumeVarint(frame[5:]); asked == lookup { // behind the command's size and the tag of its kind
			kind, body = lookupResponse, answer()
		} else if asked != connect {
			return
		}
		command := field(nil, 1, uint64(kind))
		command = protowire.AppendBytes(protowire.AppendTag(command, protowire.Number(kind), protowire.BytesType), body)
		out := binary.BigEndian.AppendUint32(nil, uint32(len(command)+4))
		out = binary.BigEndian.AppendUint32(out, uint32(len(command)))
		_, _ = conn.Write(append(out, command...))
	}
}

func field(b []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), v)
}

// sentTo is a lookup's answer: 0 is to ask there, 1 to connect there.
func sentTo(address string, what uint64) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "pulsar://"+address)
	return field(b, 3, what)
}

// TestServing goes where the brokers send it, and tells when nobody is there.
func TestServing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	unreachable := l.Addr().String()
	serving := func(first string) error {
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		return ask.Broker{Addresses: []string{first}}.Serving(ctx, "persistent://public/default/x")
	}
	lost := broker(t, func(string) []byte { return sentTo(unreachable, 1) })
	err = serving(lost)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "the brokers say that "+unreachable+" serves it")
	require.ErrorIs(t, serving(broker(t, func(string) []byte { return sentTo(lost, 0) })), syscall.ECONNREFUSED)

	there := broker(t, func(self string) []byte { return sentTo(self, 1) })
	require.NoError(t, serving(there))
	require.NoError(t, serving(broker(t, func(string) []byte { return sentTo(there, 0) })))
	require.NoError(t, serving(broker(t, func(string) []byte { return field(sentTo(unreachable, 1), 8, 1) })), "by the address that was asked")

	require.ErrorContains(t, serving(broker(t, func(self string) []byte { return sentTo(self, 0) })), "says that another one serves the topic")

	failed := func(message string) func(string) []byte {
		return func(string) []byte {
			return protowire.AppendString(protowire.AppendTag(field(nil, 3, 2), 7, protowire.BytesType), message)
		}
	}
	require.ErrorIs(t, serving(broker(t, failed("Namespace not found"))), ask.ErrNoNamespace)
	require.ErrorContains(t, serving(broker(t, failed("overloaded"))), `the broker says "overloaded"`)
}
