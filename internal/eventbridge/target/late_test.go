package target

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/test/await"
)

// TestWhatWasGivenUpComesNoMore: what an attempt had sent, and the receiver's machine had not taken
// when the attempt ended, is not sent behind it. It could come behind newer events.
func TestWhatWasGivenUpComesNoMore(t *testing.T) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlled := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
		if controlled != nil {
			return controlled
		}
		return err
	}}
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })

	h := newHarness(t, nil)
	url := fmt.Sprintf("http://%s/", listener.Addr())
	webhook := h.withTimeout(url, time.Second)
	authority := newAuthority(t)
	encrypted := h.target(&model.Subscriber{
		Target:   model.Target{Webhook: &model.Webhook{URL: strings.Replace(url, "http", "https", 1), TLS: &model.ClientTLS{CA: authority.pem}}},
		Delivery: model.Delivery{Timeout: model.Duration(time.Second)},
	})
	large := h.stored(`{"specversion":"1.0","id":"1","source":"/shop","type":"a","data":"` + strings.Repeat("x", 200<<10) + `"}`)
	for name, target := range map[string]Target{"webhook": webhook, "webhook by TLS": encrypted} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan []Result, 1)
			go func() { ended <- target.Deliver(t.Context(), []Delivery{large}) }()
			conn, err := listener.Accept()
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(await.Patience)))
			if name == "webhook by TLS" {
				require.NoError(t, tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{authority.issue(t, "127.0.0.1")}, MinVersion: tls.VersionTLS12}).Handshake())
			}
			require.Equal(t, ReasonTimeout, (<-ended)[0].Reason)
			got, err := io.ReadAll(conn)
			require.Error(t, err, "the connection was reset")
			assert.Less(t, len(got), 200<<10, "all of it came after the attempt had ended")
		})
	}
}
