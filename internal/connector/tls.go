package connector

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/aviaryhq/aviary/internal/config"
)

// TLS configures how a server's certificate is verified and which certificate the client presents.
// The version is 1.2 or newer. All files are PEM. They are read again at each connection.
type TLS struct {
	// CAFile holds the certificates of the authorities to trust. Default: the system's.
	CAFile string `yaml:"ca_file"`
	// CertFile holds the client's certificate. It needs key_file. Default: none.
	CertFile string `yaml:"cert_file"`
	// KeyFile holds the key of cert_file. Default: none.
	KeyFile string `yaml:"key_file"`
	// ServerName is the name that the server's certificate must have. Default: the host of the
	// connection.
	ServerName string `yaml:"server_name"`
	// Insecure turns off verification of the server's certificate. It is for tests only: anybody on
	// the network path can then read and change all data. Default false.
	Insecure bool `yaml:"insecure"`
}

// Check returns the faults of the section at path.
func (t TLS) Check(path string) error {
	errs := []error{config.CheckAuthorities(path+".ca_file", t.CAFile)}
	if (t.CertFile == "") != (t.KeyFile == "") {
		errs = append(errs, config.Fault(path+".cert_file", "must be given together with key_file"))
	} else {
		errs = append(errs, config.CheckFile(path+".cert_file", t.CertFile), config.CheckFile(path+".key_file", t.KeyFile))
	}
	return errors.Join(errs...)
}

// Client returns the settings of one connection to host. host is empty if the dialer sets it.
func (t TLS) Client(host string) (*tls.Config, error) {
	settings := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: t.ServerName,
		InsecureSkipVerify: t.Insecure, //nolint:gosec // off unless the operator asks for it by a key that says what it does
	}
	if settings.ServerName == "" {
		settings.ServerName = host
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
			if err != nil {
				return nil, fmt.Errorf("tls.cert_file, tls.key_file: %w", err)
			}
			return &pair, nil
		}
	}
	return settings, nil
}
