package httpserver

import (
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"

	"github.com/aviaryhq/aviary/internal/stdlog"
)

// maxHeader bounds a request's headers; beyond it the answer is 431. Headers are read before the
// sender is authenticated, and many short ones take sixteen times their length in memory: 64 KiB
// would be 1 MiB for each connection.
const maxHeader = 16 << 10

// NewServer returns a server for unknown senders. read is how long a request's headers and body may
// take; then the connection is closed. The server enforces it, so it holds for requests that are not
// authenticated as well, and for unknown paths and methods, whose bodies the server reads to keep
// the connection. It ends with the body, see ClearReadDeadline.
//
// Writing an answer may take as long: senders that do not read their answers would block the server.
// The write timeout counts from the headers on, so the time for the body and for the handling, at
// most handle, is added.
//
// The server speaks HTTP/1.1 only, also with TLS: a connection has one request at a time, so a limit
// of connections limits the memory that unknown senders take. With HTTP/2 one connection could take
// 18 MiB. A low limit of its streams would reduce that, but some clients fail with one.
func NewServer(read, handle time.Duration, state func(net.Conn, http.ConnState), handler http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: read,
		ReadTimeout:       read,
		WriteTimeout:      read + handle + read,
		Protocols:         protocols,
		MaxHeaderBytes:    maxHeader,
		ConnState:         state,
	}
}

// CountConnections returns the argument state of NewServer that counts open connections in gauge.
func CountConnections(gauge prometheus.Gauge) func(net.Conn, http.ConnState) {
	return func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			gauge.Inc()
		case http.StateClosed, http.StateHijacked:
			gauge.Dec()
		case http.StateActive, http.StateIdle:
		}
	}
}

// LimitConnections accepts no more than most connections at once; further ones wait in the listen
// backlog. 0: no limit.
func LimitConnections(ln net.Listener, most int) net.Listener {
	if most == 0 {
		return ln
	}
	return netutil.LimitListener(ln, most)
}

// Serve returns the function that serves a listener: plain HTTP, or as the web configuration file of
// Prometheus' exporter-toolkit says, which is read again at each connection and request. Errors of
// connections go to log, one line in ten seconds.
func Serve(log *zap.Logger, server *http.Server, webConfigFile string) func(net.Listener) error {
	if server.ErrorLog == nil {
		server.ErrorLog = stdlog.New(log, "an HTTP connection failed")
	}
	if webConfigFile == "" {
		return server.Serve
	}
	logger := slog.New(slogHandler{log: log})
	return func(ln net.Listener) error {
		return web.Serve(ln, server, &web.FlagConfig{WebConfigFile: &webConfigFile}, logger)
	}
}
