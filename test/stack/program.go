package stack

import (
	"context"
	"os"
	"os/exec"
	"testing"
)

// The versions of the servers.
const (
	PulsarVersion = pulsarVersion
	KafkaVersion  = kafkaVersion
)

// Program returns the path of a program, and installs the Debian package that has it if need be. The package has no service.
func Program(ctx context.Context, name, pkg string) (string, error) {
	s, err := New(Config{Log: os.Stderr})
	if err != nil {
		return "", err
	}
	return s.program(ctx, name, pkg)
}

func (s *Stack) program(ctx context.Context, name, pkg string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	if err := s.installQuietly(ctx, pkg); err != nil {
		return "", err
	}
	return exec.LookPath(name)
}

// Buildah returns the path of buildah, which makes images of containers without a server, installed if need be.
//
// If it cannot be had, the test fails when the environment variable CI is set and is skipped elsewhere.
func Buildah(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	path, err := Program(ctx, "buildah", "buildah")
	if err != nil {
		Unavailable(t, "buildah", err)
	}
	return path
}
