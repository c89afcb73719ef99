package door

import (
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"
)

// maxHeader bounds a request's headers. Past it: 431. They are read before anybody is known, and many short ones take sixteen times their length:
// 64 KiB would be 1 MiB of each connection.
const maxHeader = 16 << 10

// NewServer is the server for senders. Slow ones are cut off by the time that a
// request may take, headers and body: read. The server itself counts it, so that it holds
// for requests that are not authenticated, and for those of unknown paths and
// methods, whose bodies the server reads to keep the connection. It ends with the
// body, see LiftDeadline.
//
// So are those that do not read their answers, which would block the server once they
// have sent enough requests: an answer has the same time again. With HTTP/1.1 that is
// counted from the headers on, so the time for the body and the handling, at most handle, comes before.
func NewServer(read, handle time.Duration, state func(net.Conn, http.ConnState), handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: read,
		ReadTimeout:       read,
		WriteTimeout:      read + handle + read,
		HTTP2:             &http.HTTP2Config{WriteByteTimeout: read},
		MaxHeaderBytes:    maxHeader,
		ConnState:         state,
	}
}

// LimitConnections makes later senders wait, in the system's queue, until one of the
// others has gone. 0: no bound.
func LimitConnections(ln net.Listener, most int) net.Listener {
	if most == 0 {
		return ln
	}
	return netutil.LimitListener(ln, most)
}

// Serve returns what serves: plain HTTP, or what the web configuration file of Prometheus' exporter-toolkit says. The
// file is read again at each connection and request. What net/http has to say of connections goes to log, one line in ten seconds: anybody can cause it.
func Serve(log *zap.Logger, server *http.Server, webConfigFile string) func(net.Listener) error {
	if server.ErrorLog == nil {
		server.ErrorLog = errorLog(log)
	}
	if webConfigFile == "" {
		return server.Serve
	}
	logger := slog.New(slogHandler{log: log})
	return func(ln net.Listener) error {
		return web.Serve(ln, server, &web.FlagConfig{WebConfigFile: &webConfigFile}, logger)
	}
}
