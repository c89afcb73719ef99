package sonic

import (
	"crypto/tls"
	"errors"
	"os"

	"github.com/aviaryhq/aviary/internal/config"
)

// TLSConfig encrypts the connections of clients. All files are PEM. Sonic reads them again when
// they have changed. If the new files cannot be used, the previous ones stay in use, and Sonic logs
// an error.
type TLSConfig struct {
	// CertFile holds the server's certificate, followed by the intermediate certificates up to its
	// authority. KeyFile holds its private key. Default: none, connections are not encrypted.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ClientCAFile holds authorities: only clients with a certificate of one of them may connect.
	// Default: none, clients need no certificate.
	ClientCAFile string `yaml:"client_ca_file"`
	// MinVersion is the lowest version of TLS, 1.2 or 1.3. Default 1.2.
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
	return errors.Join(append(errs, config.CheckAuthorities("client_ca_file", c.ClientCAFile))...)
}

// server reads the files and returns the TLS configuration of the server.
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

// RedisTLSConfig says how Sonic verifies the certificate of Redis, and which certificate it
// presents to Redis. All files are PEM.
type RedisTLSConfig struct {
	// CAFile holds the authorities to trust. Sonic reads it at the start. Default: the system's
	// authorities.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile hold the certificate that Sonic presents to Redis, and its private key.
	// Sonic reads them again for each connection. Default: none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName is the name that the certificate of Redis must have. Default: the URL's host.
	ServerName string `yaml:"server_name"`
	// Insecure turns off the verification of the certificate of Redis: any server may then pretend
	// to be this Redis. Default false.
	Insecure bool `yaml:"insecure"`
}

// Validate returns every fault of the section.
func (c RedisTLSConfig) Validate() error {
	errs := []error{config.CheckAuthorities("ca_file", c.CAFile)}
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		errs = append(errs, config.Fault("cert_file", "must be given together with key_file"))
	case c.CertFile != "":
		errs = append(errs, checkPair(c.CertFile, c.KeyFile))
	}
	return errors.Join(errs...)
}

// client returns the TLS configuration of connections to Redis. Its ServerName is empty without
// server_name: who connects sets it to the host.
func (c RedisTLSConfig) client() (*tls.Config, error) {
	conf := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: c.ServerName,
		InsecureSkipVerify: c.Insecure, //nolint:gosec // only when the operator sets the key insecure
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

// checkPair returns a fault of cert_file or key_file. The fault does not contain their values: by
// mistake they may hold a private key itself instead of a file name.
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
