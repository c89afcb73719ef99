// Package proxy puts network faults between a client and a real server: latency,
// a narrow line, silence, cuts. It is a thin layer over toxiproxy.
//
// A Pulsar client follows the address that the broker advertises, so a broker
// behind a proxy must advertise the proxy's, under a listener name that clients
// ask for: see Listener and Pulsar.
package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// Listener is the listener name by which a client of a proxied Pulsar is sent to
// the proxy.
const Listener = "proxied"

// Proxy is one listening address in front of one server.
type Proxy struct {
	addr  string
	port  process.Port // holds the lock, also between Cut and Restore
	inner *toxiproxy.Proxy
}

// New reserves an address on this machine. Nothing listens there before Forward.
func New() (*Proxy, error) {
	s, err := stack.New(stack.Config{})
	if err != nil {
		return nil, err
	}
	port, err := s.ReservePort()
	if err != nil {
		return nil, err
	}
	return &Proxy{addr: "127.0.0.1:" + strconv.Itoa(port.Number), port: port}, nil
}

// Addr is the address that clients connect to.
func (p *Proxy) Addr() string { return p.addr }

// Forward begins to pass connections on to upstream, host:port or a pulsar URL.
func (p *Proxy) Forward(upstream string) error {
	upstream = strings.TrimPrefix(upstream, "pulsar://")
	zerolog.SetGlobalLevel(zerolog.Disabled) // a bandwidth writes traces past the server's logger
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	p.inner = toxiproxy.NewProxy(server, "proxy", p.addr, upstream)
	return p.inner.Start()
}

// Latency delays what the server sends by d.
func (p *Proxy) Latency(d time.Duration) error {
	return p.toxic("latency", "downstream", map[string]any{"latency": d.Milliseconds()})
}

// Bandwidth narrows both directions to rate KiB per second.
func (p *Proxy) Bandwidth(rate int64) error {
	for _, stream := range []string{"upstream", "downstream"} {
		if err := p.toxic("bandwidth", stream, map[string]any{"rate": rate}); err != nil {
			return err
		}
	}
	return nil
}

// Silence stops all data without closing a connection.
func (p *Proxy) Silence() error {
	for _, stream := range []string{"upstream", "downstream"} {
		if err := p.toxic("timeout", stream, map[string]any{"timeout": 0}); err != nil {
			return err
		}
	}
	return nil
}

// toxic adds one fault. Its JSON form is toxiproxy's public interface.
func (p *Proxy) toxic(kind, stream string, attributes map[string]any) error {
	spec, err := json.Marshal(map[string]any{
		"name": kind + "_" + stream, "type": kind, "stream": stream, "attributes": attributes,
	})
	if err != nil {
		return err
	}
	if _, err := p.inner.Toxics.AddToxicJson(bytes.NewReader(spec)); err != nil {
		return fmt.Errorf("cannot add %s: %w", kind, err)
	}
	return nil
}

// Heal removes every fault.
func (p *Proxy) Heal() { p.inner.Toxics.ResetToxics(context.Background()) }

// Cut closes every connection and refuses new ones until Restore.
func (p *Proxy) Cut() { p.inner.Stop() }

// Restore accepts connections again after a Cut.
func (p *Proxy) Restore() error { return p.inner.Start() }

// Close ends the proxy and every connection through it.
func (p *Proxy) Close() {
	if p.inner != nil {
		p.inner.Stop()
	}
}

// Pulsar starts a Pulsar of the test's own behind a proxy. Clients use url with the
// listener name Listener; the server's own methods kill, pause and restart it.
func Pulsar(t testing.TB, opts ...stack.Option) (url string, srv *stack.PulsarServer, p *Proxy) {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	srv = stack.PrivatePulsar(t, append(opts, stack.Advertise(p.addr))...)
	if err := p.Forward(srv.URL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return "pulsar://" + p.Addr(), srv, p
}

// Kafka starts a Kafka of the test's own behind a proxy, whose address clients use as
// broker and are told to stay with.
func Kafka(t testing.TB, opts ...stack.Option) (broker string, srv *stack.KafkaServer, p *Proxy) {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	srv = stack.PrivateKafka(t, append(opts, stack.Advertise(p.addr))...)
	if err := p.Forward(srv.Upstream()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Addr(), srv, p
}

// RabbitMQ starts a RabbitMQ of the test's own behind a proxy. Clients use url.
func RabbitMQ(t testing.TB, opts ...stack.Option) (url string, srv *stack.RabbitMQServer, p *Proxy) {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	srv = stack.PrivateRabbitMQ(t, opts...)
	if err := p.Forward(srv.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return strings.Replace(srv.URL(), srv.Addr(), p.Addr(), 1), srv, p
}
