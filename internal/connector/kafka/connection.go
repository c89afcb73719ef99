package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/aviaryhq/aviary/internal/config"
)

// Connection says how to reach one Kafka cluster.
type Connection struct {
	// Brokers are addresses, host:port, of some of the cluster's brokers; the others are found through them. Default 127.0.0.1:9092.
	Brokers []string `yaml:"brokers"`
	// ClientID names this client in the brokers' logs, metrics and quotas. Default pigeonhole.
	ClientID string `yaml:"client_id"`
	// TLS encrypts connections. Default: off.
	TLS TLS `yaml:"tls"`
	// SASL is how the client proves who it is. Default: not at all.
	SASL SASL `yaml:"sasl"`
	// ConnectTimeout bounds one connection attempt. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// RequestTimeout bounds one request to a broker. At least 10s: members of a consumer group wait in a request for one another. Default 30s.
	RequestTimeout time.Duration `yaml:"request_timeout"`
}

// TLS configures the transport, version 1.2 or newer. A broker's certificate must be for the host that is connected to.
type TLS struct {
	// Enabled switches TLS on. Default false.
	Enabled bool `yaml:"enabled"`
	// CAFile holds the PEM certificates to trust. Default: the system's.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile are the PEM client certificate and key of mutual TLS, read again at every connection. Default: none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName is the name that brokers' certificates must be for, where it is not the host connected to. Default: that host.
	ServerName string `yaml:"server_name"`
	// Insecure switches verification off. For tests only: anybody on the path can then read and change all traffic. Default false.
	Insecure bool `yaml:"insecure"`
}

// keepAlive is the time between probes of a silent TCP connection.
const keepAlive = 30 * time.Second

func defaultConnection() Connection {
	return Connection{
		Brokers:        []string{"127.0.0.1:9092"},
		ClientID:       "pigeonhole",
		ConnectTimeout: 5 * time.Second,
		RequestTimeout: 30 * time.Second,
	}
}

func (c Connection) validate() error {
	var errs []error
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	if len(c.Brokers) == 0 {
		fault("brokers", "must name at least one broker, such as 127.0.0.1:9092")
	}
	for i, address := range c.Brokers {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			fault(fmt.Sprintf("brokers[%d]", i), "must be host:port, got %q", address)
		}
	}
	if c.ClientID == "" {
		fault("client_id", "must not be empty")
	}
	if c.ConnectTimeout <= 0 {
		fault("connect_timeout", "must be > 0, got %s", c.ConnectTimeout)
	}
	if c.RequestTimeout < 10*time.Second {
		fault("request_timeout", "must be at least 10s, got %s", c.RequestTimeout)
	}
	readable := func(path, file string) {
		if file == "" {
			return
		}
		// The value is not repeated: it may be what was meant for the file.
		if f, err := os.Open(file); err != nil {
			fault(path, "must name a readable file: %s", config.WithoutPath(err))
		} else {
			_ = f.Close()
		}
	}
	if c.TLS.CAFile != "" {
		if _, err := config.ReadAuthorities(c.TLS.CAFile); err != nil {
			fault("tls.ca_file", "must name a readable file of PEM certificates: %s", config.WithoutPath(err))
		}
	}
	readable("tls.cert_file", c.TLS.CertFile)
	readable("tls.key_file", c.TLS.KeyFile)
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		fault("tls", "must have both cert_file and key_file, or neither")
	}
	if !c.TLS.Enabled && (c.TLS.CAFile != "" || c.TLS.CertFile != "" || c.TLS.ServerName != "" || c.TLS.Insecure) {
		fault("tls.enabled", "must be true for the other keys of tls to have an effect")
	}
	errs = append(errs, c.SASL.faults(readable)...)
	return errors.Join(errs...)
}

// settings are the connection's for sarama. Files are read here, so that a changed one is noticed when the connection is made again.
func (c Connection) settings() (*sarama.Config, error) {
	conf := sarama.NewConfig()
	// Requests are made in the newest version that both sides know: the broker's are asked for at connecting.
	conf.Version = sarama.V4_1_0_0
	conf.ClientID = c.ClientID
	conf.MetricRegistry = noMetrics{}
	conf.Net.DialTimeout = c.ConnectTimeout
	conf.Net.ReadTimeout = c.RequestTimeout
	conf.Net.WriteTimeout = c.RequestTimeout
	conf.Net.KeepAlive = keepAlive
	conf.Net.MaxOpenRequests = 1
	conf.Metadata.AllowAutoTopicCreation = false
	conf.Metadata.Retry.Max = 2
	conf.Metadata.Timeout = 2 * c.ConnectTimeout
	conf.Admin.Timeout = c.RequestTimeout
	if c.TLS.Enabled {
		settings, err := c.TLS.settings()
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

// dial connects franz-go. Files are read at every connection anew.
func (c Connection) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: c.ConnectTimeout, KeepAlive: keepAlive}
	if !c.TLS.Enabled {
		return dialer.DialContext(ctx, network, address)
	}
	settings, err := c.TLS.settings()
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{NetDialer: dialer, Config: settings}).DialContext(ctx, network, address)
}

func (t TLS) settings() (*tls.Config, error) {
	settings := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         t.ServerName,
		InsecureSkipVerify: t.Insecure, //nolint:gosec // off unless the operator asks for it by a key that says what it does
	}
	if t.CAFile != "" {
		pool, err := config.ReadAuthorities(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_file: %w", err)
		}
		settings.RootCAs = pool
	}
	if t.CertFile != "" {
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			return &pair, err
		}
	}
	return settings, nil
}

// trouble names the cluster in an error for people.
func (c Connection) trouble(err error) error {
	return fmt.Errorf("kafka %s: %w", strings.Join(c.Brokers, ","), explained(err))
}

// explained says what the end of a connection may mean.
func explained(err error) error {
	var told *kgo.ErrFirstReadEOF
	if (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) && !errors.As(err, &told) {
		return fmt.Errorf("%w (the broker closed the connection: does it expect TLS or SASL otherwise?)", err)
	}
	return err
}
