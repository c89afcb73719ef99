package sonic

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net/url"
	"os"

	"github.com/aviaryhq/aviary/internal/config"
)

// TLSConfig encrypts the connections of clients. All files are PEM. They are read again when they have changed; where the new ones cannot be used
// those before stay in force, and the log says so.
type TLSConfig struct {
	// CertFile and KeyFile are the endpoint's certificate, with those between it and its authority behind it, and its key. Default: none, connections
	// are not encrypted.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ClientCAFile holds authorities: only clients with a certificate of one of them may connect. Default: none, no certificate is asked for.
	ClientCAFile string `yaml:"client_ca_file"`
	// MinVersion is the least version of TLS, 1.2 or 1.3. Default 1.2.
	MinVersion string `yaml:"min_version"`
}

// Versions of TLS.
const (
	version12 = "1.2"
	version13 = "1.3"
)

func (c TLSConfig) enabled() bool { return c.CertFile != "" }

// Validate returns every fault of the section.
func (c TLSConfig) Validate() error {
	errs := []error{config.CheckOneOf("min_version", c.MinVersion, version12, version13)}
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		errs = append(errs, config.Fault("cert_file", "must be given together with key_file"))
	case c.CertFile == "" && c.ClientCAFile != "":
		errs = append(errs, config.Fault("client_ca_file", "is of no use without cert_file and key_file"))
	case c.CertFile != "":
		errs = append(errs, checkPair(c.CertFile, c.KeyFile))
	}
	return errors.Join(append(errs, checkAuthorities("client_ca_file", c.ClientCAFile))...)
}

// server makes the configuration of what is in the files.
func (c TLSConfig) server() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if c.MinVersion == version13 {
		conf.MinVersion = tls.VersionTLS13
	}
	if c.ClientCAFile != "" {
		if conf.ClientCAs, err = config.ReadAuthorities(c.ClientCAFile); err != nil {
			return nil, err
		}
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return conf, nil
}

// RedisTLSConfig is how the certificate of Redis is verified, and which one is shown to it. All files are PEM.
type RedisTLSConfig struct {
	// CAFile holds the authorities to trust. It is read at the start. Default: the system's.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile are the certificate that Redis is shown. They are read again at each connection. Default: none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName must be in the certificate of Redis. Default: the URL's host.
	ServerName string `yaml:"server_name"`
	// Insecure does not verify the certificate of Redis: anybody may then pretend to be it. Default false.
	Insecure bool `yaml:"insecure"`
}

// Validate returns every fault of the section.
func (c RedisTLSConfig) Validate() error {
	errs := []error{checkAuthorities("ca_file", c.CAFile)}
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		errs = append(errs, config.Fault("cert_file", "must be given together with key_file"))
	case c.CertFile != "":
		errs = append(errs, checkPair(c.CertFile, c.KeyFile))
	}
	return errors.Join(errs...)
}

// client makes the configuration of connections to Redis.
func (c RedisTLSConfig) client(u *url.URL) (*tls.Config, error) {
	conf := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: cmp.Or(c.ServerName, u.Hostname()),
		InsecureSkipVerify: c.Insecure, //nolint:gosec // off unless the operator asks for it by a key that says what it does
	}
	if c.CAFile != "" {
		var err error
		if conf.RootCAs, err = config.ReadAuthorities(c.CAFile); err != nil {
			return nil, err
		}
	}
	if c.CertFile != "" {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			return &pair, err
		}
	}
	return conf, nil
}

// checkPair returns a fault of cert_file or key_file. It does not repeat their values: they may be what was meant for the files.
func checkPair(certFile, keyFile string) error {
	certificate, err := os.ReadFile(certFile)
	if err != nil {
		return config.Fault("cert_file", "must name a readable file: %s", config.WithoutPath(err))
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return config.Fault("key_file", "must name a readable file: %s", config.WithoutPath(err))
	}
	if _, err := tls.X509KeyPair(certificate, key); err != nil {
		return config.Fault("cert_file", "must name a PEM certificate, and key_file its key: %s", err)
	}
	return nil
}

func checkAuthorities(path, file string) error {
	if file == "" {
		return nil
	}
	if _, err := config.ReadAuthorities(file); err != nil {
		return config.Fault(path, "must name a readable file of PEM certificates: %s", config.WithoutPath(err))
	}
	return nil
}
