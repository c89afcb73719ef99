package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
)

// Connection says how to reach one Kafka cluster.
type Connection struct {
	// Brokers are the addresses, host:port, of some of the cluster's brokers, which report the
	// others. Default 127.0.0.1:9092.
	Brokers []string `yaml:"brokers"`
	// ClientID names this client in the brokers' logs, metrics and quotas. Default pigeonhole.
	ClientID string `yaml:"client_id"`
	// TLS encrypts connections. Default: off.
	TLS TLS `yaml:"tls"`
	// SASL is how the client authenticates. Default: without authentication.
	SASL SASL `yaml:"sasl"`
	// RequestTimeout bounds one request to a broker. At least 10s, because a request to join a
	// consumer group waits for the other members. Default 30s.
	RequestTimeout time.Duration `yaml:"request_timeout"`
}

// TLS configures the transport.
type TLS struct {
	// Enabled switches TLS on. Default false.
	Enabled       bool `yaml:"enabled"`
	connector.TLS `yaml:",inline"`
}

const (
	connectTimeout = 5 * time.Second  // of one attempt
	keepAlive      = 30 * time.Second // between probes of a silent TCP connection
)

func defaultConnection() Connection {
	return Connection{
		Brokers:        []string{"127.0.0.1:9092"},
		ClientID:       "pigeonhole",
		RequestTimeout: 30 * time.Second,
	}
}

func (c Connection) validate() error {
	errs := []error{config.Require(len(c.Brokers) > 0, "brokers", "must name at least one broker, such as 127.0.0.1:9092")}
	for i, address := range c.Brokers {
		host, port, err := net.SplitHostPort(address)
		errs = append(errs, config.Require(err == nil && host != "" && port != "", fmt.Sprintf("brokers[%d]", i), "must be host:port, got %q", address))
	}
	return errors.Join(append(errs,
		config.Require(c.ClientID != "", "client_id", "must not be empty"),
		config.CheckAtLeast("request_timeout", c.RequestTimeout, 10*time.Second), c.TLS.Check("tls"),
		config.Require(c.TLS.Enabled || c.TLS == TLS{}, "tls.enabled", "must be true for the other keys of tls to have an effect"),
		c.SASL.validate())...)
}

// settings are sarama's for one connection. Files are read here, so each connection uses their
// current content.
func (c Connection) settings() (*sarama.Config, error) {
	conf := sarama.NewConfig()
	conf.Version = sarama.V4_1_0_0 // the newest; the library uses older requests with older brokers
	conf.ClientID = c.ClientID
	conf.MetricRegistry = noMetrics{}
	conf.Net.DialTimeout = connectTimeout
	conf.Net.ReadTimeout = c.RequestTimeout
	conf.Net.WriteTimeout = c.RequestTimeout
	conf.Net.KeepAlive = keepAlive
	conf.Net.MaxOpenRequests = 1
	conf.Metadata.AllowAutoTopicCreation = false
	conf.Metadata.Retry.Max = 2
	conf.Metadata.Timeout = 2 * connectTimeout
	conf.Admin.Timeout = c.RequestTimeout
	if c.TLS.Enabled {
		settings, err := c.TLS.Client("")
		if err != nil {
			return nil, err
		}
		conf.Net.TLS.Enable, conf.Net.TLS.Config = true, settings
	}
	if err := c.SASL.apply(conf); err != nil {
		return nil, err
	}
	return conf, nil
}

// client makes a franz-go client that connects when it is used.
func (c Connection) client(more ...kgo.Opt) (*kgo.Client, error) {
	options := []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.ClientID(c.ClientID), kgo.Dialer(c.dial), kgo.DisableClientMetrics()}
	mechanism, err := c.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return kgo.NewClient(append(options, more...)...)
}

// dial connects franz-go. It reads files at each connection.
func (c Connection) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: keepAlive}
	if !c.TLS.Enabled {
		return dialer.DialContext(ctx, network, address)
	}
	settings, err := c.TLS.Client("")
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{NetDialer: dialer, Config: settings}).DialContext(ctx, network, address)
}

// withBrokers returns err with the addresses of the cluster; nil for nil.
func (c Connection) withBrokers(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("kafka %s: %w", strings.Join(c.Brokers, ","), explainEOF(err))
}

// explainEOF adds the likely cause to the error of a connection that the broker closed.
func explainEOF(err error) error {
	var explained *kgo.ErrFirstReadEOF
	if (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) && !errors.As(err, &explained) {
		return fmt.Errorf("%w (the broker closed the connection: check whether it expects TLS and SASL)", err)
	}
	return err
}

// noMetrics turns sarama's metrics off: they are expensive, and the pipelines count already. The
// library's own switch, metrics.UseNilMetrics, is a variable of the whole process.
type noMetrics struct{ metrics.Registry }

func (noMetrics) GetOrRegister(_ string, create any) any {
	switch create.(type) {
	case func() metrics.Counter:
		return metrics.NilCounter{}
	case func() metrics.Meter:
		return metrics.NilMeter{}
	case func() metrics.Histogram:
		return metrics.NilHistogram{}
	}
	return create
}

func (noMetrics) Unregister(string) {}
