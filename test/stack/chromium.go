package stack

import (
	"context"
	"os"
	"os/exec"
	"testing"
)

// chromiums are programs that are a Chromium which can run without a screen. The first is that of the Debian package of its name.
func chromiums() []string { return []string{"chromium-headless-shell", "chromium", "google-chrome"} }

// Chromium returns the path of a Chromium that can run without a screen, installed if need be.
//
// If none can be had, the test fails when the environment variable CI is set and is skipped elsewhere.
func Chromium(t testing.TB) string {
	t.Helper()
	s, err := New(Config{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	path, err := s.chromium(ctx)
	if err != nil {
		Unavailable(t, "chromium", err)
	}
	return path
}

func (s *Stack) chromium(ctx context.Context) (string, error) {
	for _, name := range chromiums() {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	pkg := chromiums()[0]
	if err := s.installQuietly(ctx, pkg); err != nil { // it has no service
		return "", err
	}
	return exec.LookPath(pkg)
}
