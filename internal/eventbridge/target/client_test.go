package target

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/test/await"
)

// TestIdleConnectionsEndInOrder: a receiver sees the end of a connection on which all is answered,
// not a reset.
func TestIdleConnectionsEndInOrder(t *testing.T) {
	authority := newAuthority(t)
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			ends := make(chan error, 1)
			converse := func(c net.Conn) {
				readWhole(c)
				say(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				_, err := c.Read(make([]byte, 1))
				ends <- err
			}
			served := converse
			if scheme == "https" {
				served = func(c net.Conn) {
					converse(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{authority.issue(t, "127.0.0.1")}, MinVersion: tls.VersionTLS12}))
				}
			}
			url := strings.Replace(rawServer(t, served), "http", scheme, 1)
			target := newHarness(t, nil).webhook(url, func(w *model.Webhook) { w.TLS = &model.ClientTLS{CA: authority.pem} })
			result := deliver(t, target, Delivery{})
			require.Equal(t, Delivered, result.Verdict, "%v", result.Err)
			require.NoError(t, target.Close(t.Context()))
			select {
			case err := <-ends:
				assert.ErrorIs(t, err, io.EOF)
			case <-time.After(await.Patience):
				t.Fatal("the connection is still open")
			}
		})
	}
}

// TestConnectionsAge: a connection ends at its maximum age although there are always requests.
func TestConnectionsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPiped(func(there net.Conn) {
			time.Sleep(time.Second)
			say(there, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		})
		for began := time.Now(); time.Since(began) < 3*maxConnectionAge; {
			require.Equal(t, Delivered, w.Deliver(t.Context(), []Delivery{{}})[0].Verdict)
		}
		synctest.Wait()
		assert.Equal(t, int64(3), w.dialed.Load())
		assert.Equal(t, int64(2), w.ended.Load())
		w.transport.CloseIdleConnections()
		synctest.Wait()
		assert.Equal(t, w.dialed.Load(), w.ended.Load())
	})
}

// TestAConnectionThatNobodyReadsClosesSoon: net/http closes idle connections one after the other, and
// other requests wait for that.
func TestAConnectionThatNobodyReadsClosesSoon(t *testing.T) {
	certificate := newAuthority(t).issue(t, "shop.example")
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		dial := ownConnections(func(context.Context, string, string) (net.Conn, error) { return here, nil })
		below, err := dial(t.Context(), "tcp", "shop.example:443")
		require.NoError(t, err)
		go func() {
			_ = tls.Server(there, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}).HandshakeContext(t.Context())
		}()
		conn := tls.Client(below, &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, conn.HandshakeContext(t.Context()))
		began := time.Now()
		_ = conn.Close() // TLS' alert is not read
		assert.Equal(t, lastWrite, time.Since(began))
	})
}

// piped is a webhook with connections in memory, for virtual clocks.
type piped struct {
	*webhook
	dialed, ended atomic.Int64 // connections
}

// newPiped makes a webhook whose receiver answers each request by answer.
func newPiped(answer func(there net.Conn)) *piped {
	p := &piped{}
	transport := &http.Transport{DialContext: ownConnections(func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		p.dialed.Add(1)
		go func() {
			for r, _ := readWhole(there); r != nil; r, _ = readWhole(there) {
				answer(there) // and a request to close the connection is ignored
			}
			_ = there.Close()
			p.ended.Add(1)
		}()
		return here, nil
	})}
	p.webhook = &webhook{
		mode: model.ModeStructured, transport: transport, timeout: time.Minute, structured: http.Header{},
		blank: httptest.NewRequest(http.MethodPost, "http://shop.example/", nil),
	}
	return p
}
