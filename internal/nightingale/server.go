package nightingale

import (
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"
)

// maxHeader bounds a request's headers. Past it: 431.
const maxHeader = 64 << 10

// newServer is the server for senders. Slow ones are cut off by the time that a
// request may take, headers and body. The server itself counts it, so that it holds
// for requests that are not authenticated, and for those of unknown paths and
// methods, whose bodies the server reads to keep the connection. It ends with the
// body, see liftDeadline.
//
// So are those that do not read their answers, which would block the server once they
// have sent enough requests: an answer has the same time again. With HTTP/1.1 that is
// counted from the headers on, so the time for the body and the handling comes before.
func newServer(cfg Config, m *metrics, handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: cfg.Limits.ReadTimeout,
		ReadTimeout:       cfg.Limits.ReadTimeout,
		WriteTimeout:      cfg.Limits.ReadTimeout + cfg.RequestTimeout + cfg.Limits.ReadTimeout,
		HTTP2:             &http.HTTP2Config{WriteByteTimeout: cfg.Limits.ReadTimeout},
		MaxHeaderBytes:    maxHeader,
		ConnState:         m.connState,
	}
}

// limitConnections makes later senders wait, in the system's queue, until one of the
// others has gone.
func limitConnections(ln net.Listener, l Limits) net.Listener {
	if l.Connections == 0 {
		return ln
	}
	return netutil.LimitListener(ln, l.Connections)
}

// serve returns what serves: plain HTTP, or what the web configuration file says. The
// file is read again at each connection and request.
func (c HTTPConfig) serve(log *zap.Logger, server *http.Server) func(net.Listener) error {
	if c.WebConfigFile == "" {
		return server.Serve
	}
	logger := slog.New(slogHandler{log: log})
	return func(ln net.Listener) error {
		return web.Serve(ln, server, &web.FlagConfig{WebConfigFile: &c.WebConfigFile}, logger)
	}
}
