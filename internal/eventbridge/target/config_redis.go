package target

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// Redis is one server, a server that sentinels know, or a cluster.
type Redis struct {
	// Addresses are host:port of the server; with master, of sentinels; with cluster, of some
	// nodes. Default 127.0.0.1:6379.
	Addresses []string `yaml:"addresses"`
	// Master is the name by which sentinels know the server. Default: none, addresses are not those
	// of sentinels.
	Master string `yaml:"master"`
	// Cluster says that addresses are nodes of a Redis Cluster. Default false.
	Cluster bool `yaml:"cluster"`
	// Username and Password log in to the server. PasswordFile names a file that holds the password
	// instead; it is read for each connection. Default: none.
	Username     string        `yaml:"username"`
	Password     secret.String `yaml:"password"`
	PasswordFile string        `yaml:"password_file"`
	// DB is the number of the database. It must be 0 with cluster. Default 0.
	DB int `yaml:"db"`
	// TLS encrypts connections. Default: off.
	TLS RedisTLS `yaml:"tls"`
	// ConnectTimeout bounds one connection attempt. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// MaxConnections bounds the connections to each server. Default 32.
	MaxConnections int `yaml:"max_connections"`
}

// RedisTLS configures TLS 1.2 or newer. All files are PEM, and are read at the start.
type RedisTLS struct {
	// Enabled switches TLS on. Default false.
	Enabled bool `yaml:"enabled"`
	// CAFile holds the certificates to trust. Default: the system's.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile are the client certificate. Default: none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName must be in the server's certificate. Default: the host connected to.
	ServerName string `yaml:"server_name"`
	// Insecure switches verification off: anyone can then pretend to be the server. Default false.
	Insecure bool `yaml:"insecure"`
}

// SetDefaults is called before the section is decoded.
func (c *Redis) SetDefaults() {
	*c = Redis{Addresses: []string{"127.0.0.1:6379"}, ConnectTimeout: 5 * time.Second, MaxConnections: 32}
}

// Validate returns every fault of the section.
func (c Redis) Validate() error {
	var errs []error
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	if len(c.Addresses) == 0 {
		fault("addresses", "must name at least one server, such as 127.0.0.1:6379")
	}
	for i, address := range c.Addresses {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			fault(fmt.Sprintf("addresses[%d]", i), "must be host:port, got %q", address)
		}
	}
	switch {
	case c.Cluster && c.Master != "":
		fault("master", "must not be given with cluster")
	case len(c.Addresses) > 1 && !c.Cluster && c.Master == "":
		fault("addresses", "must be one address without master (of sentinels) or cluster, got %d", len(c.Addresses))
	}
	if c.DB < 0 || c.DB > 0 && c.Cluster {
		fault("db", "must be >= 0, and 0 with cluster, got %d", c.DB)
	}
	if c.Password != "" && c.PasswordFile != "" {
		fault("password_file", "give password or password_file, not both")
	}
	errs = append(errs, config.CheckFile("password_file", c.PasswordFile))
	if c.ConnectTimeout <= 0 {
		fault("connect_timeout", "must be > 0, got %s", c.ConnectTimeout)
	}
	errs = append(errs, config.CheckRange("max_connections", c.MaxConnections, 1, 10_000))
	if !c.TLS.Enabled && c.TLS != (RedisTLS{}) {
		fault("tls.enabled", "must be true for the other keys of tls to have an effect")
	} else if _, err := c.TLS.client(); err != nil {
		errs = append(errs, fmt.Errorf("tls.%w", err))
	}
	return errors.Join(errs...)
}

// client returns nil if TLS is off. An error begins with the key that it is about.
func (t RedisTLS) client() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil //nolint:nilnil // off
	}
	settings := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: t.ServerName,
		InsecureSkipVerify: t.Insecure, //nolint:gosec // off unless the operator asks for it by a key that says what it does
	}
	if t.CAFile != "" {
		pool, err := config.ReadAuthorities(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: must name a readable file of PEM certificates: %w", config.WithoutPath(err))
		}
		settings.RootCAs = pool
	}
	if t.CertFile == "" && t.KeyFile == "" {
		return settings, nil
	}
	certificate, err := os.ReadFile(t.CertFile)
	if err != nil {
		return nil, fmt.Errorf("cert_file: must name a readable file: %w", config.WithoutPath(err))
	}
	key, err := os.ReadFile(t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("key_file: must name a readable file: %w", config.WithoutPath(err))
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, errors.New("cert_file: must be a certificate in PEM, and key_file its private key")
	}
	settings.Certificates = []tls.Certificate{pair}
	return settings, nil
}

// longestTimeout is the greatest value of model.Delivery.Timeout.
const longestTimeout = 5 * time.Minute

// open makes a client. The client connects when it is used.
func (c Redis) open() (redis.UniversalClient, error) {
	settings, err := c.TLS.client()
	if err != nil {
		return nil, err
	}
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: c.Addresses, MasterName: c.Master, IsClusterMode: c.Cluster, DB: c.DB, ClientName: clientName, TLSConfig: settings,
		CredentialsProvider: func() (username, password string) {
			p, err := secret.Resolve(c.Password, c.PasswordFile)
			if err != nil {
				p = "" // the server then answers that it needs one
			}
			return c.Username, p.Reveal()
		},
		Dialer: droppingUnsent(redis.NewDialer(&redis.Options{DialTimeout: c.ConnectTimeout, TLSConfig: settings})),
		// The context of an attempt bounds the wait for an answer. A shorter timeout of the client
		// would end long attempts too early.
		DialTimeout: c.ConnectTimeout, ContextTimeoutEnabled: true, ReadTimeout: longestTimeout, WriteTimeout: longestTimeout, MaxRetries: -1,
		PoolSize: c.MaxConnections, PoolFIFO: true, ConnMaxIdleTime: 5 * time.Minute,
	}), nil
}

// droppingUnsent makes each connection drop unsent data when it is closed. The client does not say
// which connection an attempt has.
func droppingUnsent(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		dropUnsent(conn)
		return conn, err
	}
}
