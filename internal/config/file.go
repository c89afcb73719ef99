package config

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
)

// ReadAuthorities reads a file of PEM certificates, at least one.
func ReadAuthorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("it holds no PEM certificate")
	}
	return pool, nil
}

// WithoutPath returns the reason of a failed file operation without the file's name, which a fault does not repeat.
func WithoutPath(err error) error {
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		return failed.Err
	}
	return err
}
