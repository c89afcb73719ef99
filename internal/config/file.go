package config

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"syscall"
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

// WithoutPath returns the reason of a failed file operation without the file's name, which a fault
// does not repeat.
func WithoutPath(err error) error {
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// CheckFile returns a fault at path unless file can be opened for reading, or is empty: no file.
// The fault does not repeat the name: the file's content may have been given instead. CheckFile
// does not open a pipe, whose content can be read only once.
func CheckFile(path, file string) error {
	if file == "" {
		return nil
	}
	info, err := os.Stat(file)
	switch {
	case err == nil && info.IsDir():
		err = syscall.EISDIR
	case err == nil && info.Mode().IsRegular():
		var f *os.File
		if f, err = os.Open(file); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return Fault(path, "must name a readable file: %s", WithoutPath(err))
	}
	return nil
}

// CheckAuthorities returns a fault at path unless file holds PEM certificates, or is empty: no
// file. The fault does not repeat the name, either.
func CheckAuthorities(path, file string) error {
	if file == "" {
		return nil
	}
	if _, err := ReadAuthorities(file); err != nil {
		return Fault(path, "must name a readable file of PEM certificates: %s", WithoutPath(err))
	}
	return nil
}
