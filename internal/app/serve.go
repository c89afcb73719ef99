package app

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Listen opens a TCP listener for the server of that name. It logs "listening" with the server and
// the address, with the chosen port if the given one was 0. key is the configuration's key of the
// address, for errors.
func Listen(ctx context.Context, log *zap.Logger, server, key, address string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		if cause := (*os.SyscallError)(nil); errors.As(err, &cause) {
			err = cause.Err // without the address again
		}
		return nil, fmt.Errorf("%s: cannot listen on %s: %w", key, address, err)
	}
	log.Info("listening", zap.String("server", server), zap.String("address", ln.Addr().String()))
	return ln, nil
}

// Serve serves HTTP on ln, which it takes over, until ctx ends. Then it accepts no more
// connections, and requests in flight have the time grace to finish. Requests that do not finish
// are cut off, which is an error that wraps context.DeadlineExceeded. When Serve returns, the
// listener and every connection are closed. Serve sets limits on headers and idle connections if
// the server has none.
func Serve(ctx context.Context, ln net.Listener, server *http.Server, grace time.Duration) error {
	return ServeWith(ctx, ln, server, grace, server.Serve)
}

// ServeWith is Serve with the caller's own function to serve, such as one with TLS. Like
// server.Serve, it must return http.ErrServerClosed once the server is shut down, and it owns ln.
func ServeWith(ctx context.Context, ln net.Listener, server *http.Server, grace time.Duration, serve func(net.Listener) error) error {
	if server.ReadHeaderTimeout == 0 {
		server.ReadHeaderTimeout = 10 * time.Second
	}
	if server.IdleTimeout == 0 {
		server.IdleTimeout = 2 * time.Minute
	}
	served := make(chan error, 1)
	go func() { served <- serve(ln) }()
	select {
	case err := <-served:
		_ = ln.Close() // in case serving failed before it began; otherwise it is closed already
		return errors.Join(fmt.Errorf("cannot serve HTTP on %s: %w", ln.Addr(), err), server.Close())
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(drain)
	if err != nil {
		err = errors.Join(fmt.Errorf("requests still in flight after %s were cut off: %w", grace, err), server.Close())
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("cannot serve HTTP on %s: %w", ln.Addr(), ended))
	}
	return err
}

// errorLog takes the errors that net/http logs, which are about single connections.
func errorLog(log *zap.Logger) *stdlog.Logger {
	l, err := zap.NewStdLogAt(log, zapcore.WarnLevel)
	if err != nil { // only for a level that does not exist
		return zap.NewStdLog(log)
	}
	return l
}
