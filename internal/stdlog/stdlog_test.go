package stdlog

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestLinesAreLoggedRarely: one in ten seconds, with how many there were; panics always.
func TestLinesAreLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.DebugLevel)
		log := New(zap.New(core), "an HTTP connection failed")
		for range 100 {
			log.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
		}
		require.Equal(t, 1, logged.Len())
		log.Print(`http: TLS handshake error from 192.0.2.1:1: unsupported protocols (["panic serving a token"])`)
		require.Equal(t, 1, logged.Len(), "a peer cannot write what looks like a panic")
		log.Print(`http: panic serving 192.0.2.1:1: "oh"`)
		panics := logged.FilterLevelExact(zap.ErrorLevel).All()
		require.Len(t, panics, 1)
		assert.Equal(t, `http: panic serving 192.0.2.1:1: "oh"`, panics[0].ContextMap()["text"])
		time.Sleep(interval)
		log.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
		last := logged.All()[logged.Len()-1]
		assert.Equal(t, "an HTTP connection failed", last.Message)
		assert.Equal(t, "http: TLS handshake error from 192.0.2.1:1: EOF", last.ContextMap()["text"])
		assert.EqualValues(t, 100, last.ContextMap()["left_out"])
	})
}

// TestWhatPeersSendIsNotLogged: net/http logs the beginning of what a server sends without a
// request, which may be what the server was sent.
func TestWhatPeersSendIsNotLogged(t *testing.T) {
	core, logged := observer.New(zap.DebugLevel)
	Redirect(zap.New(core))
	t.Cleanup(func() {
		log.SetOutput(os.Stderr)
		log.SetFlags(log.LstdFlags)
	})
	here, there := net.Pipe()
	go func() {
		request, err := http.ReadRequest(bufio.NewReader(there))
		if err == nil {
			_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"+request.Header.Get("Authorization"))
		}
	}()
	closed := make(chan struct{})
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return &closing{Conn: here, closed: closed}, nil
	}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop.example/", nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer token-of-the-shop")
	answer, err := transport.RoundTrip(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	<-closed // by the transport, behind its line
	require.Equal(t, 1, logged.Len())
	text := logged.All()[0].ContextMap()["text"].(string)
	assert.True(t, strings.HasPrefix(text, "Unsolicited response received"), text)
	assert.NotContains(t, text, "token-of-the-shop")
	assert.NotContains(t, text, `"`)
}

// closing is a connection that says when it is closed.
type closing struct {
	net.Conn
	closed chan struct{}
}

func (c *closing) Close() error {
	err := c.Conn.Close()
	close(c.closed)
	return err
}
